"""[select]: which prompts a run draws, and which of their rollouts it trains on."""

from __future__ import annotations

import random
from itertools import islice

from keys.acting import Lab, acts, run
from keys.rollouts import scripted
from playing import call
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.config.schema import Recipe
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.store.pass_rates import PassRate, PassRateFile
from retcon.train.prompts import PromptStream
from retcon.train.rl import draw_groups
from retcon.train.rollouts import GroupStream
from training import Ones

ROC = ('select.kind="roc"', "rollout.max_tokens=2000", "rollout.max_turns=4")
RIGHT, WRONG = r"\boxed{1}", r"\boxed{2}"


def index(request_id: str) -> int:
    return int(request_id.rpartition("/")[2])


def kept(recipe: Recipe, lab: Lab, right: range, untidy: range = range(0)) -> list[Trajectory]:
    """What is left of the groups of a step in which the rollouts of these indices are right, or fail at first."""

    def reply(request_id: str, text: str, n: int) -> str:
        if "print(1)" not in text:
            return call("print(a)" if index(request_id) in untidy and "print(a)" not in text else "print(1)")
        return RIGHT if index(request_id) in right else WRONG

    async def drawn() -> list[Trajectory]:
        async with scripted(recipe, lab, reply) as rollouts:
            groups = await draw_groups(GroupStream(rollouts, Ones().train(0)), step=1)
            return [t for group in groups.kept for t in group]

    return run(drawn())


@acts("select.kind", ("none", False), ("roc", True), given=(*ROC, "rl.group=4"))
def the_right_one_of_eight_is_kept(recipe: Recipe, lab: Lab) -> bool:
    """Without a selection it is not even made."""
    return any(t.reward == 1.0 for t in kept(recipe, lab, range(7, 8)))


@acts(
    "select.draw",
    ("rank", {4}),
    ("weighted", {4, 5, 6, 7}),
    given=(*ROC, "rl.group=2", "rl.prompts=30", "select.oversample=4"),
)
def right_ones_that_are_kept(recipe: Recipe, lab: Lab) -> set[int]:
    """Of eight, the fifth alone is right without a failure on its way."""
    return {index(t.id) for t in kept(recipe, lab, range(4, 8), range(5, 8)) if t.reward == 1.0}


@acts(
    "select.failures",
    ("purified", {4, 5, 6, 7}),
    ("raw", {4}),
    given=(*ROC, 'repair.kind="saar"', "rl.group=2", "rl.prompts=24", "select.oversample=4"),
)
def repaired_ones_that_are_kept(recipe: Recipe, lab: Lab) -> set[int]:
    """Of eight, four are right, the first of them without anything to repair."""
    return {index(t.id) for t in kept(recipe, lab, range(4, 8), range(5, 8)) if t.reward == 1.0}


@acts("select.min_positive", (0, 1), (2, 2), given=(*ROC, "rl.group=4", "select.oversample=4"))
def right_ones_of_two_in_sixteen(recipe: Recipe, lab: Lab) -> int:
    return sum(t.reward == 1.0 for t in kept(recipe, lab, range(2)))


@acts("select.min_negative", (0, 0), (2, 2), given=(*ROC, "rl.group=4", "select.oversample=4"))
def wrong_ones_of_two_in_sixteen(recipe: Recipe, lab: Lab) -> int:
    return sum(t.reward == -1.0 for t in kept(recipe, lab, range(14)))


def drawn(seed: int) -> list[int]:
    """Four of eight wrong rollouts, of each of the two prompts of step 1: a draw by seed, step and task."""
    streams = [random.Random(derive("select", seed, 1, f"ones/0/{n}")) for n in range(2)]
    return [index for stream in streams for index in sorted(stream.sample(range(8), 4))]


@acts("run.seed", (0, drawn(0)), (1, drawn(1)), given=(*ROC, "rl.group=4", "rl.prompts=2"))
def wrong_ones_that_are_kept(recipe: Recipe, lab: Lab) -> list[int]:
    return [index(t.id) for t in kept(recipe, lab, range(0))]


def extra_groups(recipe: Recipe, lab: Lab) -> float:
    """How many more are drawn where no group teaches anything."""
    return lab.reinforced(recipe, [1.0])[1][0]["extra_groups"]


@acts("select.dynamic", (False, 0), (True, 2))
def groups_in_place_of_flat_ones(recipe: Recipe, lab: Lab) -> float:
    return extra_groups(recipe, lab)


@acts("select.max_extra", (1.0, 1), (3.0, 3), given=["select.dynamic=true"])
def groups_at_most(recipe: Recipe, lab: Lab) -> float:
    return extra_groups(recipe, lab)


@acts("select.max_rounds", (0, 0), (1, 1), given=["select.dynamic=true"])
def rounds_at_most(recipe: Recipe, lab: Lab) -> float:
    return extra_groups(recipe, lab)


def prompts(recipe: Recipe, lab: Lab) -> list[str]:
    """The first four that a run draws of tasks whose rates go 0, 1/4, 3/4, 1 and on like that."""
    stream = derive("prompts", recipe.run.seed)
    if not (file := lab.folder / "rates.jsonl").exists():
        with PassRateFile(file) as rates:
            for n in range(80):
                rates.add(PassRate(f"ones/{stream}/{n}", "m", (0, 1, 3, 4)[n % 4], 4))
    drawn = PromptStream(recipe, Ones(), chat=Chat(load_tokenizer(lab.base)), model="m").after(0)
    return [task.id.rpartition("/")[2] for task in islice(drawn, 4)]


RATED = 'select.pass_rates="LAB/rates.jsonl"'


@acts("select.pass_rates", ("", ["0", "1", "2", "3"]), ("LAB/rates.jsonl", ["1", "2", "5", "6"]))
def prompts_that_are_drawn(recipe: Recipe, lab: Lab) -> list[str]:
    return prompts(recipe, lab)


@acts("select.min_pass_rate", (0.0, ["0", "1", "2", "4"]), (0.5, ["2", "6", "10", "14"]), given=[RATED])
def prompts_that_are_not_too_hard(recipe: Recipe, lab: Lab) -> list[str]:
    return prompts(recipe, lab)


@acts("select.max_pass_rate", (0.5, ["1", "5", "9", "13"]), (1.0, ["1", "2", "3", "5"]), given=[RATED])
def prompts_that_are_not_too_easy(recipe: Recipe, lab: Lab) -> list[str]:
    return prompts(recipe, lab)


@acts(
    "run.seed", (0, f"ones/{derive('prompts', 0)}/0"), (1, f"ones/{derive('prompts', 1)}/0"),
)  # fmt: skip
def first_prompt_of_a_run(recipe: Recipe, lab: Lab) -> str:
    return next(PromptStream(recipe, Ones(), chat=Chat(load_tokenizer(lab.base)), model="m").after(0)).id
