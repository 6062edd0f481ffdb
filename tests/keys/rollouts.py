"""[model] style, [rollout], [strategy], [repair], how many rollouts [rl] and [select] ask for: of a scripted model."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import torch

from chat_templates import OBJECTS
from keys.acting import Lab, acts, run
from playing import call, hermes_call
from retcon.build import build_chat, build_subcalls
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.schema import Recipe
from retcon.core.seeds import derive
from retcon.core.types import Segment, Status, Trajectory, Turn, history_ids
from retcon.engine.kinds.scripted import Reply, ScriptedEngine
from retcon.models.placing import start_model
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.subcalls import RolloutModel, SubcallBudget, TreePlace
from retcon.serve.harness import ModelEndpoint
from retcon.tasks.types import Task
from retcon.tools.kinds.rlm import INSTRUCTIONS
from retcon.tools.scripted import ScriptedTool
from retcon.train.rollouts import EngineWeights, TrainingRollouts, open_rollouts
from training import Ones

Replies = Sequence[Reply] | Callable[[str, str, int], str]
TASK = Task("t", "go", "1")
ROOM = ("rollout.max_tokens=2000", "rollout.max_turns=6", "rollout.lookahead_tokens=2000", "rl.group=2")
SAAR = (*ROOM, 'repair.kind="saar"')
REPAIRED = [call("print(a)"), call("print(1)"), "1"]
FAILING = [call(f"print({name})") for name in "abcdefgh"] * 4


@dataclass(frozen=True)
class Rolled:
    group: list[Trajectory]
    engine: ScriptedEngine

    @property
    def first(self) -> Trajectory:
        return self.group[0]

    def prompt(self, n: int) -> str:
        """What the model was given for the n-th generation of the first rollout."""
        return self.engine.tokenizer.decode([ids for name, ids in self.engine.seen if name == self.first.id][n])


@asynccontextmanager
async def scripted(
    recipe: Recipe, lab: Lab, replies: Replies, failure: Status = "error"
) -> AsyncIterator[TrainingRollouts]:
    """The rollouts of a training run, but for who writes and who runs: letters fail, numbers do not."""
    weights = EngineWeights(start_model(lab.base, 0), torch.float32)
    async with open_rollouts(recipe, weights, lab.base, Ones()) as rollouts:
        engine = ScriptedEngine(rollouts.context.chat.tokenizer, replies)
        tool = ScriptedTool(lambda code: ("1", "ok", None) if any(map(str.isdigit, code)) else ("no", failure, None))
        yield replace(rollouts, context=replace(rollouts.context, engine=engine, tools={"python": tool}))


def roll(recipe: Recipe, lab: Lab, replies: Replies = ("1",), *, failure: Status = "error", step: int = 1) -> Rolled:
    """One group."""

    async def rolled() -> Rolled:
        async with scripted(recipe, lab, replies, failure) as rollouts:
            (group,) = await rollouts.of([TASK], step=step)
            return Rolled(group, rollouts.context.engine)

    return run(rolled())


@acts("model.style", ("markdown", 0), ("hermes", 1), given=ROOM)
def calls_in_the_style_of_hermes(recipe: Recipe, lab: Lab) -> int:
    return roll(recipe, lab, [hermes_call("print(1)"), "1"]).first.calls


AUTO = ('model.style="auto"',)
THINKING = (
    OBJECTS
    + """{% if add_generation_prompt %}
{%- if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- if enable_thinking is true %}<think>{% endif %}{% endif %}"""
)


@acts("model.thinking", ("default", "assistant\n"), ("on", "<think>"), ("off", "</think>\n\n"), given=AUTO)
def how_the_template_opens_a_turn(recipe: Recipe, lab: Lab) -> str:
    folder = lab.out()
    shutil.copytree(lab.base, folder)
    (folder / "chat_template.jinja").write_text(THINKING)
    text = "".join(segment.text for segment in build_chat(recipe, folder).prompt("go"))
    return next(end for end in ("</think>\n\n", "<think>", "assistant\n") if text.endswith(end))


@acts("model.chat_template_kwargs", ({}, "assistant\n"), ({"enable_thinking": True}, "<think>"), given=AUTO)
def variables_of_the_template(recipe: Recipe, lab: Lab) -> str:
    return how_the_template_opens_a_turn(recipe, lab)


def below_a_rollout(recipe: Recipe, ask: Callable[[RolloutModel], Awaitable[list[str]]]) -> list[RolloutContext]:
    """The contexts of the children that a program's three calls of the model got."""
    made: list[RolloutContext] = []

    async def run(task: Task, settings: RolloutContext, *, id: str, **_: object) -> Trajectory:
        made.append(settings)
        ids = tuple(range(5))
        turn = Turn((Segment("sampled", "x", ids),))
        return Trajectory(id, task.id, (Segment("prompt", "p", ids * 2),), (turn,))

    chat = Chat(ByteTokenizer())
    limits, tools = build_subcalls(recipe), {"python": ScriptedTool({})}
    engine = ScriptedEngine(chat.tokenizer, [])
    context = RolloutContext(engine, chat, tools, RolloutLimits(100, 2), subcalls=limits)
    model = RolloutModel(TASK, context, "t", 0, TreePlace(SubcallBudget(limits)), run)

    async def all_three() -> None:
        for _ in range(3):
            await ask(model)

    asyncio.run(all_three())
    return made


@acts("subcalls.calls", (0, 0), (2, 2))
@acts("subcalls.input_tokens", (0, 0), (15, 2))
@acts("subcalls.output_tokens", (0, 0), (6, 2))
@acts("subcalls.seconds", (1e-9, 0), (600.0, 3))
def calls_of_the_model_that_are_made(recipe: Recipe, lab: Lab) -> int:
    return len(below_a_rollout(recipe, lambda model: model.complete("0.0.0", ["go"])))


@acts("subcalls.depth", (0, 0), (1, 3))
def rollouts_below_with_tools(recipe: Recipe, lab: Lab) -> int:
    return sum(bool(made.tools) for made in below_a_rollout(recipe, lambda model: model.recurse("0.0.0", ["go"])))


@acts("subcalls.prompts", ("", False), ("retcon", True), given=("rollout.tools=rlm",))
def system_prompt_of_the_tool(recipe: Recipe, lab: Lab) -> bool:
    return build_chat(recipe, lab.base).system == INSTRUCTIONS


@acts("run.seed", (0, derive("rollout", 0, 1, "t", 0)), (5, derive("rollout", 5, 1, "t", 0)), given=ROOM)
def seed_of_a_rollout(recipe: Recipe, lab: Lab) -> int | None:
    return roll(recipe, lab).first.provenance.seed


@acts("rollout.max_tokens", (60, 60), (110, 110), given=ROOM)
def ids_of_a_model_that_does_not_end(recipe: Recipe, lab: Lab) -> int:
    return sum(len(s.ids or ()) for s in roll(recipe, lab, ["word " * 900]).first.segments)


@acts("rollout.max_response_tokens", (0, 912), (30, 40), given=ROOM)
def ids_of_a_prompt_and_its_response(recipe: Recipe, lab: Lab) -> int:
    return len(history_ids(roll(recipe, lab, ["word " * 900]).first))


@acts("rollout.max_turns", (1, 1), (4, 4), given=ROOM)
def turns_of_a_model_that_keeps_calling(recipe: Recipe, lab: Lab) -> int:
    return len(roll(recipe, lab, FAILING).first.turns)


@acts("rollout.lookahead_tokens", (0, 0), (20, 1), (2000, 3), given=(*SAAR, "rollout.max_tokens=30"))
def attempts_that_there_is_room_for(recipe: Recipe, lab: Lab) -> int:
    """The prompt takes 10 ids, a failure 20."""
    return len(roll(recipe, lab, FAILING).first.turns[0].abandoned)


@acts("rollout.temperature", (0.7, {0.7}), (1.3, {1.3}), given=ROOM)
def temperature_of_a_generation(recipe: Recipe, lab: Lab) -> set[float]:
    return {params.temperature for params in roll(recipe, lab, REPAIRED).engine.params}


@acts("rollout.top_p", (0.5, {0.5}), (0.9, {0.9}), given=ROOM)
def top_p_of_a_generation(recipe: Recipe, lab: Lab) -> set[float]:
    return {params.top_p for params in roll(recipe, lab, REPAIRED).engine.params}


@acts("rollout.top_k", (0, {0}), (7, {7}), given=ROOM)
def top_k_of_a_generation(recipe: Recipe, lab: Lab) -> set[int]:
    return {params.top_k for params in roll(recipe, lab, REPAIRED).engine.params}


@acts("rollout.min_p", (0.0, {0.0}), (0.1, {0.1}), given=ROOM)
def min_p_of_a_generation(recipe: Recipe, lab: Lab) -> set[float]:
    return {params.min_p for params in roll(recipe, lab, REPAIRED).engine.params}


@acts("repair.kind", ("none", 2), ("saar", 1), given=ROOM)
def calls_that_stay_in_the_history(recipe: Recipe, lab: Lab) -> int:
    return roll(recipe, lab, REPAIRED).first.calls


@acts("repair.attempts", (0, 0), (1, 1), (2, 2), given=SAAR)
def attempts_at_a_turn(recipe: Recipe, lab: Lab) -> int:
    return len(roll(recipe, lab, [*FAILING, "1"]).first.turns[0].abandoned)


@acts("repair.fresh", (1, "deep"), (2, "resampled"), given=(*ROOM, 'repair.kind="branch"', "repair.gamma=0.9"))
def what_takes_the_place_of_a_failure(recipe: Recipe, lab: Lab) -> str:
    record = roll(recipe, lab, [call("print(a)"), call("print(b)"), call("print(1)"), "1"]).first.turns[0].repair
    return record.decision if record else "none"


@acts("repair.gamma", (0.8, "shallow"), (0.9, "deep"), given=SAAR)
def depth_of_a_repair(recipe: Recipe, lab: Lab) -> str:
    """Sim("print(a)", "print(1)") is 0.875."""
    record = roll(recipe, lab, REPAIRED).first.turns[0].repair
    return record.decision if record else "none"


@acts("repair.agree", (1, "deep"), (2, "unrepaired"), given=(*SAAR, "repair.gamma=0.9"))
def decision_on_a_fix_that_no_other_attempt_agrees_with(recipe: Recipe, lab: Lab) -> str:
    made = roll(recipe, lab, [call("print(a)"), call("print(1)"), call("print(b)"), call("print(c)"), "1"])
    record = made.first.turns[0].repair
    return record.decision if record else "none"


@acts("repair.lookahead", ("all", 3), ("latest", 1), given=SAAR)
def failures_that_the_third_attempt_is_shown(recipe: Recipe, lab: Lab) -> int:
    prompt = roll(recipe, lab, FAILING).prompt(3)
    return sum(prompt.count(f"print({name})") for name in "abc")


@acts("repair.probability", (0.0, 0), (1.0, 8), given=(*SAAR, "rl.group=8"))
def rollouts_that_are_purified(recipe: Recipe, lab: Lab) -> int:
    return sum(t.provenance.purified for t in roll(recipe, lab).group)


@acts(
    "repair.probability_schedule",
    ([], [8, 8]),
    ([[1, 1.0], [3, 0.0]], [8, 5]),
    given=(*SAAR, "rl.group=8", "run.seed=3"),
)
def rollouts_that_are_purified_step_by_step(recipe: Recipe, lab: Lab) -> list[int]:
    """In the middle each of eight is purified with p = 1/2: with this seed, five."""
    return [sum(t.provenance.purified for t in roll(recipe, lab, step=step).group) for step in (1, 2)]


@acts("repair.probes", (0, [True] * 4), (1, [False, True, True, True]), given=(*SAAR, "rl.group=4"))
def which_of_a_group_are_purified(recipe: Recipe, lab: Lab) -> list[bool]:
    return [t.provenance.purified for t in roll(recipe, lab, lambda _, text, n: FAILING[n]).group]


@acts("repair.least_probability", (0.0, 0), (1.0, 3), given=(*SAAR, "rl.group=4", "repair.probes=1"))
def rollouts_that_are_purified_where_no_first_try_fails(recipe: Recipe, lab: Lab) -> int:
    return sum(t.provenance.purified for t in roll(recipe, lab).group)


@acts("repair.chars", (12, "[python fa…]"), (80, "[python failed: error]"), given=(*ROOM, 'repair.kind="describe"'))
def line_in_place_of_a_failed_call(recipe: Recipe, lab: Lab) -> str:
    return roll(recipe, lab, [call("print(a)"), "1"]).first.turns[0].observations[0].text


@acts("repair.failures", (["error"], [True, False]), (["timeout", "limit"], [False, True]), given=SAAR)
def failures_that_are_repaired(recipe: Recipe, lab: Lab) -> list[bool]:
    statuses: tuple[Status, ...] = ("error", "timeout")
    return [roll(recipe, lab, REPAIRED, failure=status).first.failures == 0 for status in statuses]


@acts("rl.group", (2, 2), (5, 5), given=ROOM)
def rollouts_of_a_prompt(recipe: Recipe, lab: Lab) -> int:
    return len(roll(recipe, lab).group)


@acts("select.oversample", (1.2, 3), (3.0, 6), given=(*ROOM, 'select.kind="roc"'))
def rollouts_of_a_prompt_to_choose_from(recipe: Recipe, lab: Lab) -> int:
    return len(roll(recipe, lab).group)


@acts("rl.max_staleness", (0, None), (1, 1), given=["rl.steps=2"])
def age_of_the_weights_that_a_step_learns_from(recipe: Recipe, lab: Lab) -> object:
    return lab.reinforced(recipe)[1][-1].get("staleness_max")


GROUP = (*ROOM[:3], "rl.group=8")
ARPO = (*GROUP, 'strategy.kind="arpo"', "strategy.initial=2", "strategy.probability=1.0")
AEPO = (*GROUP, 'strategy.kind="aepo"', "strategy.probability=1.0")
FISSION = (*GROUP, 'strategy.kind="fission"', "strategy.initial=2")
THREE_CALLS = [call("print(1)"), call("print(2)"), call("print(3)"), "1"]


def grown(recipe: Recipe, lab: Lab) -> Rolled:
    return roll(recipe, lab, THREE_CALLS)


def branched(recipe: Recipe, lab: Lab) -> list[int]:
    """Which of the group's rollouts left another one."""
    return [n for n, t in enumerate(grown(recipe, lab).group) if t.branch is not None]


async def asks_twice(task: Task, endpoint: ModelEndpoint, pause: float = 0.0) -> None:
    """A harness, which takes its time after the first answer."""
    messages: list[object] = []
    async with aiohttp.ClientSession() as http:
        for said in (task.question, "again"):
            messages.append({"role": "user", "content": said})
            body = {"model": endpoint.name, "messages": messages}
            async with http.post(f"{endpoint.url}/chat/completions", json=body) as answer:
                messages.append((await answer.json())["choices"][0]["message"])
            await asyncio.sleep(pause)


async def asks_slowly(task: Task, endpoint: ModelEndpoint) -> None:
    await asks_twice(task, endpoint, pause=1.0)


@acts("rollout.harness", ("", 1), ("keys.rollouts:asks_twice", 2), given=ROOM)
def turns_where_the_question_is_answered_at_once(recipe: Recipe, lab: Lab) -> int:
    return len(roll(recipe, lab, ["1", "1"]).first.turns)


@acts("rollout.harness_seconds", (0.5, "infrastructure"), (300, "answer"),
      given=(*ROOM, "rollout.harness=keys.rollouts:asks_slowly"))  # fmt: skip
def end_of_a_rollout_by_a_harness_that_takes_two_seconds(recipe: Recipe, lab: Lab) -> str:
    return roll(recipe, lab, ["1", "1"]).first.stop


@acts("strategy.kind", ("independent", (0, False)), ("arpo", (4, True)), ("aepo", (4, False)), given=GROUP)
def rollouts_that_left_another_and_whether_they_left_the_first(recipe: Recipe, lab: Lab) -> tuple[int, bool]:
    """That one is measured by aepo, and has no branches."""
    found = grown(recipe, lab)
    left = [t.branch.root for t in found.group if t.branch is not None]
    return len(left), found.first.id in left


@acts("strategy.initial", (2, [2, 3, 4, 5, 6, 7]), (6, [6, 7]), given=ARPO)
def rollouts_that_do_not_begin_with_the_prompt(recipe: Recipe, lab: Lab) -> list[int]:
    return branched(recipe, lab)


@acts("strategy.recoveries", (1, [1] * 6), (3, [3, 3]), given=FISSION)
def rollouts_that_follow_each_failed_call(recipe: Recipe, lab: Lab) -> list[int]:
    found = roll(recipe, lab, [call("oops"), call("oops"), call("oops"), "1"])
    return sorted(Counter((t.branch.parent, t.branch.turns) for t in found.group if t.branch is not None).values())


@acts("strategy.entropy_tokens", (1, {1}), (7, {7}), given=ARPO)
def entropies_that_are_asked_for(recipe: Recipe, lab: Lab) -> set[int]:
    return {params.entropies for params in grown(recipe, lab).engine.params}


@acts("strategy.siblings", (1, 1), (3, 3), given=(*ARPO, "strategy.entropy_weight=0"))
def rollouts_that_left_another_at_one_point(recipe: Recipe, lab: Lab) -> int:
    points = [(t.branch.parent, t.branch.turns) for t in grown(recipe, lab).group if t.branch is not None]
    return max(map(points.count, points))


@acts("strategy.probability", (0.0, 0), (1.0, 6), given=(*ARPO, "strategy.entropy_weight=0"))
def rollouts_that_left_another_with_this_probability(recipe: Recipe, lab: Lab) -> int:
    return len(branched(recipe, lab))


@acts("strategy.threshold", (0.0, 6), (1.0, 0), given=ARPO)
def rollouts_that_left_another_above_it(recipe: Recipe, lab: Lab) -> int:
    return len(branched(recipe, lab))


@acts("strategy.entropy_weight", (0.0, True), (9.0, False), given=(*ARPO, "strategy.probability=0.5"))
def whether_branches_have_nothing_to_do_with_the_rise(recipe: Recipe, lab: Lab) -> bool:
    """With a large weight, rollouts branch where the surprisal has risen and nowhere else."""
    rises = [t.branch.rise for t in grown(recipe, lab).group if t.branch is not None]
    return min(rises) < 0


@acts("strategy.balance", (1e-6, 4), (1e6, 2), given=AEPO)
def rollouts_from_the_start_by_the_first_one(recipe: Recipe, lab: Lab) -> int:
    """Of 8, where its later turns surprise more than its first: half, or as few as there can be."""
    return min(branched(recipe, lab), default=8)


@acts("strategy.penalty", (0.0, {1, 2}), (1.0, {1, 3}), given=(*AEPO, "strategy.initial=1", "rl.group=3"))
def turns_after_which_the_first_rollout_is_left(recipe: Recipe, lab: Lab) -> set[int]:
    """Never twice in a row, where the penalty takes all of it."""
    found = grown(recipe, lab)
    return {t.branch.turns for t in found.group if t.branch is not None and t.branch.parent == found.first.id}
