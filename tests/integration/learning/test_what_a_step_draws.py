"""The groups of a step: what selection keeps of each, by which seed, and how many more dynamic sampling draws."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.schema import Recipe
from retcon.core.types import Segment, Trajectory, Turn
from retcon.tasks.types import Task
from retcon.train.prompts import Drawn, selection_metrics, to_train
from retcon.train.rl import draw_groups

pytestmark = pytest.mark.torch


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


def drawn(stream: Stream, step: int = 1) -> Drawn:
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


def test_without_dynamic_sampling_a_step_has_its_own_groups_alone() -> None:
    recipe = Recipe.model_validate({"rl": {"prompts": 2, "group": 2}, "select": {"dynamic": False}})
    stream = Stream(recipe, group(*FLAT), group(*FLAT), group(*TELLING))
    found = drawn(stream)
    assert stream.asked == [(2, 1)]
    assert (len(found.made), found.rounds) == (2, 0)


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
    assert selection_metrics(recipe, found)["kept"] == len(to_train(recipe, found)[0]) == 4


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
    assert to_train(recipe, found) == []
    assert (told["kept"], told["groups_skipped"], told["groups_flat"]) == (0, 1, 0)
