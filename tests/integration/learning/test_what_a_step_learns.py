"""From the groups of a step to its update: rewards near the limit, seeds, the reference; when one is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch
from safetensors.torch import load_file

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, stages_of
from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.types import Segment, Trajectory, Turn
from retcon.models.devices import Computing
from retcon.tasks.types import Task
from retcon.train import rl
from retcon.train.objective.advantage import grpo
from retcon.train.prompts import StepGroups, groups_to_train, selection_metrics
from retcon.train.rl import draw_groups, run_rl
from training import Graded, make_base, small_recipe

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("learns") / "base")


def rollout(index: int, reward: float | None, tokens: int = 1, stop: str = "answer") -> Trajectory:
    """An answer of so many tokens after a prompt of one."""
    written = Segment("sampled", "a" * tokens, tuple(range(2, 2 + tokens)), (-1.0,) * tokens)
    ended: Any = "infrastructure" if reward is None else "answer"
    last: Any = stop
    return Trajectory(f"t/0/1/{index}", "t", (Segment("prompt", "p", (1,)),), (Turn((written,), stop=last),),
                      reward=reward, stop=ended)  # fmt: skip


def learnt(monkeypatch: pytest.MonkeyPatch, recipe: Recipe, *groups: list[Trajectory], step: int = 3) -> dict[str, Any]:
    """What the update of these groups is given."""
    given: dict[str, Any] = {}

    def update(model: object, optimizer: object, samples: object, section: object, **named: Any) -> dict[str, float]:
        given.update(named, model=model, samples=samples)
        return {}

    monkeypatch.setattr(rl, "update", update)
    trainer: Any = SimpleNamespace(model="model", optimizer="optimizer", computing=Computing(micro_batch_tokens=7))
    reference: Any = "reference"
    rl._learn(trainer, list(groups), stages_of(recipe)[0], step, reference, {})
    return given


def test_rollouts_near_the_limit_are_punished_in_what_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2, 9 and 12 tokens; the last 4 of 12 are the buffer, so that 9 lose a quarter of .8 and 12 all of it."""
    recipe = Recipe.model_validate(
        {"rl": {"overlong_buffer": 4, "overlong_penalty": 0.8}, "rollout": {"max_tokens": 12}}
    )
    group = [rollout(n, 1.0, tokens - 1) for n, tokens in enumerate((2, 9, 12))]
    samples = learnt(monkeypatch, recipe, group)["samples"]
    assert [s.advantages[0] for s in samples] == pytest.approx(grpo([1.0, 0.8, 0.2]))


def test_advantages_are_normalised_over_the_groups_of_a_step_where_the_algorithm_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each alone, they would be centred and nothing else."""
    recipe = Recipe.model_validate({"rl": {"algorithm": "reinforce_pp"}})
    rewards = ((1.0, -1.0), (0.2, 0.0))
    groups = [[rollout(n, reward) for n, reward in enumerate(given)] for given in rewards]
    samples = learnt(monkeypatch, recipe, *groups)["samples"]
    wanted = [a for group in recipe.rl.advantages_of_step(rewards) for a in group]
    assert [s.advantages[0] for s in samples] == pytest.approx(wanted)
    assert samples[0].advantages[0] == pytest.approx(10 * samples[2].advantages[0])


class Killed(Exception):
    pass


def killed_after(step: int) -> Any:
    def tell(line: Mapping[str, float | None]) -> None:
        if line["step"] == step:
            raise Killed

    return tell


MIXED = Graded(rewards=((1.0, -1.0, 1.0, -1.0),))
SMALL: dict[str, dict[str, object]] = {"rollout": {"max_tokens": 16}, "repair": {"kind": "none"}}


def test_the_reference_stays_what_the_run_started_from(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every step, and in a session that goes on from a checkpoint."""
    start, seen = load_file(base / "model.safetensors"), []
    updated = rl.update

    def update(model: Any, *args: Any, **named: Any) -> Any:
        same = [all(torch.equal(of.state_dict()[n], t) for n, t in start.items()) for of in (model, named["reference"])]
        seen.append((named["step"], *same))
        return updated(model, *args, **named)

    monkeypatch.setattr(rl, "update", update)
    section = {"prompts": 1, "group": 4, "steps": 3, "lr": 1e-2, "checkpoint_every": 1, "kl": 0.1}
    recipe = small_recipe(base, rl=section, **SMALL)
    with pytest.raises(Killed):
        run_rl(recipe, base, tmp_path / "run", tasks=MIXED, on_step=killed_after(2))
    run_rl(recipe, base, tmp_path / "run", tasks=MIXED)
    assert seen == [(1, True, True), (2, False, True), (3, False, True)]


class Drawing:
    """In the place of a run's `GroupStream`: groups as they are given."""

    def __init__(self, recipe: Recipe, *groups: list[Trajectory]) -> None:
        self.rollouts = SimpleNamespace(recipe=recipe, context=SimpleNamespace(faults=SimpleNamespace(why="")))
        self._groups = iter(groups)
        self._tasks = (Task(f"t/{n}", "go", "1") for n in count())

    async def take(self, count: int, *, step: int) -> list[tuple[Task, list[Trajectory]]]:
        return [(next(self._tasks), next(self._groups)) for _ in range(count)]


@pytest.mark.parametrize(
    ("lost", "graded", "cut_off", "ends"),
    [(3, 2, 0, False), (4, 4, 0, False), (4, 3, 0, True), (5, 4, 0, True), (4, 3, 9, True), (0, 3, 9, False)],
)
def test_a_step_is_given_up_where_more_than_half_of_its_answers_and_four_cannot_be_graded(
    lost: int, graded: int, cut_off: int, ends: bool
) -> None:
    """Rollouts without an answer are wrong whatever the grader: they say nothing of it."""
    recipe = Recipe.model_validate({"rl": {"prompts": 2, "group": 4}})
    rollouts = [*(rollout(n, None) for n in range(lost)), *(rollout(n, n % 2) for n in range(lost, lost + graded))]
    rollouts += [rollout(99 + n, 0.0, stop="length") for n in range(cut_off)]
    whole = [rollout(n, 0.0, stop="length") for n in range(4)]
    stream: Any = Drawing(recipe, rollouts, whole)
    if ends:
        with pytest.raises(SandboxUnavailable, match=rf"step 1: {lost} of the {lost + graded} rollouts that gave an"):
            asyncio.run(draw_groups(stream, step=1))
    else:
        drawn = asyncio.run(draw_groups(stream, step=1))
        assert [len(group) for group in drawn.kept] == [min(4, graded + cut_off), 4]


def test_what_an_engine_cannot_follow_is_refused_before_there_is_a_run(base: Path, tmp_path: Path) -> None:
    recipe = load_recipe(None, ["engine.kind=vllm", "engine.url=http://127.0.0.1:1", "engine.lora=true"])
    with pytest.raises(RecipeError, match=r"^engine\.lora gives servers adapters, and lora\.rank is 0"):
        run_rl(recipe, base, tmp_path / "out", tasks=MIXED)
    assert not (tmp_path / "out").exists()


# The groups of a step: what selection keeps of each, by which seed, and how many more dynamic sampling draws.


def group(*rewards: float | None) -> list[Trajectory]:
    """Rollouts with these rewards, None where a fault took one."""
    turns = (Turn((Segment("sampled", "a", (2,), (-1.0,)),), stop="answer"),)
    return [
        Trajectory(f"t/0/1/{n}", "t", (Segment("prompt", "p", (1,)),), turns, reward=reward,
                   stop="infrastructure" if reward is None else "answer")
        for n, reward in enumerate(rewards)
    ]  # fmt: skip


class Stream:
    """In the place of a run's `GroupStream`: groups as they are given, of tasks with these names. asked: how many were
    taken at a time, and in which step."""

    def __init__(self, recipe: Recipe, *groups: list[Trajectory], name: str = "t") -> None:
        self.rollouts = SimpleNamespace(recipe=recipe, context=SimpleNamespace(faults=SimpleNamespace(why="")))
        self.asked: list[tuple[int, int]] = []
        self._groups = iter(groups)
        self._tasks = (Task(f"{name}/{n}", "go", "1") for n in count())

    async def take(self, wanted: int, *, step: int) -> list[tuple[Task, list[Trajectory]]]:
        self.asked.append((wanted, step))
        return [(next(self._tasks), next(self._groups)) for _ in range(wanted)]


def drawn(stream: Stream, step: int = 1) -> StepGroups:
    given: Any = stream
    return asyncio.run(draw_groups(given, step=step))


def test_what_selection_draws_hangs_on_run_step_and_task_alone() -> None:
    """Of sixteen rollouts that are as good as one another, four are kept: others in another run, step or task."""

    def kept(seed: int = 0, step: int = 1, name: str = "t") -> list[str]:
        select = {"kind": "roc", "oversample": 4, "draw": "weighted"}
        recipe = Recipe.model_validate({"rl": {"prompts": 2, "group": 4}, "select": select, "run": {"seed": seed}})
        found = drawn(Stream(recipe, group(*[1.0] * 16), group(*[1.0] * 16), name=name), step)
        first, second = ([t.id for t in rollouts] for rollouts in found.kept)
        assert len(first) == len(second) == 4
        assert first != second  # two tasks of a step
        return first

    assert kept() == kept()
    assert len({tuple(names) for names in (kept(), kept(seed=1), kept(step=2), kept(name="s"))}) == 4


FLAT, TELLING = (1.0, 1.0), (1.0, 0.0)


@pytest.mark.parametrize(
    ("rounds", "extra", "later", "asked"),
    [
        (3, 9.0, [TELLING, TELLING], [3, 2]),
        (3, 9.0, [FLAT, TELLING, TELLING], [3, 2, 1]),
        (3, 9.0, [FLAT, FLAT, FLAT, FLAT, FLAT, TELLING], [3, 2, 2, 2]),  # three rounds are the most
        (2, 9.0, [FLAT, FLAT, FLAT, FLAT], [3, 2, 2]),
        (3, 1.0, [FLAT, FLAT, FLAT], [3, 2, 1]),  # three groups more are the most
        (3, 9.0, [(None, None), FLAT, TELLING, TELLING], [3, 2, 2]),  # a group that faults took teaches nothing
    ],
)
def test_groups_that_teach_nothing_are_made_up_for_until_a_bound_is_met(
    rounds: int, extra: float, later: list[tuple[float | None, ...]], asked: list[int]
) -> None:
    """Two of the three that are drawn at first have one reward."""
    select = {"dynamic": True, "max_rounds": rounds, "max_extra": extra}
    recipe = Recipe.model_validate({"rl": {"prompts": 3, "group": 2}, "select": select})
    stream = Stream(recipe, *(group(*rewards) for rewards in [FLAT, TELLING, FLAT, *later]))
    found = drawn(stream, step=5)
    assert stream.asked == [(wanted, 5) for wanted in asked]
    assert [[t.reward for t in rollouts] for rollouts in found.made] == [
        list(rewards) for rewards in [FLAT, TELLING, FLAT, *later]
    ]
    assert [len(rollouts) for rollouts in found.kept] == [0 if None in r else 2 for r in [FLAT, TELLING, FLAT, *later]]
    told = selection_metrics(recipe, found)
    assert (told["extra_rounds"], told["extra_groups"]) == (len(asked) - 1, len(later))


def test_a_group_that_faults_took_is_not_selected_from(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.model_validate({"rl": {"prompts": 2, "group": 2}, "select": {"dynamic": False}})
    monkeypatch.setattr(type(recipe.select), "select", lambda self, group, keep, *, seed: [group[0], group[1]])
    assert [len(kept) for kept in drawn(Stream(recipe, group(None, None), group(*TELLING))).kept] == [0, 2]


MASKED = {"prompts": 1, "group": 4, "truncated": "mask"}


def cut_off(rollouts: list[Trajectory], *numbers: int) -> list[Trajectory]:
    return [replace(t, stop="length") if n in numbers else t for n, t in enumerate(rollouts)]


@pytest.mark.parametrize(("in_baseline", "asked"), [(False, [1, 1]), (True, [1])])
def test_a_group_whose_rewards_differ_by_a_masked_one_alone_is_drawn_again(in_baseline: bool, asked: list[int]) -> None:
    rl = {**MASKED, "masked_in_baseline": in_baseline}
    recipe = Recipe.model_validate({"rl": rl, "select": {"dynamic": True}})
    stream = Stream(recipe, cut_off(group(1, 1, 1, -1), 3), group(1, 1, -1, -1))
    found = drawn(stream)
    assert [wanted for wanted, _ in stream.asked] == asked
    assert selection_metrics(recipe, found)["kept"] == len(groups_to_train(recipe, found)[0]) == 4


def test_selection_chooses_among_the_rollouts_that_are_not_masked() -> None:
    """Of eight, four are kept: the two masked ones are none of them, though they are wrong ones."""
    select = {"kind": "roc", "oversample": 2}
    recipe = Recipe.model_validate({"rl": MASKED, "select": select})
    rollouts = cut_off(group(1, 1, 1, -1, -1, -1, -1, -1), 6, 7)
    (kept,) = drawn(Stream(recipe, rollouts)).kept
    assert ([t.reward for t in kept], {t.stop for t in kept}) == ([1, 1, -1, -1], {"answer"})


def test_a_step_whose_rollouts_are_all_masked_is_no_fault() -> None:
    recipe = Recipe.model_validate({"rl": MASKED, "select": {"dynamic": False}})
    found = drawn(Stream(recipe, cut_off(group(-1, -1, -1, -1), 0, 1, 2, 3)))
    told = selection_metrics(recipe, found)
    assert groups_to_train(recipe, found) == []
    assert (told["kept"], told["groups_skipped"], told["groups_flat"]) == (0, 1, 0)
