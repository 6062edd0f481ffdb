"""Rollouts that are begun before the step that learns from them: `rl.max_staleness`."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.types import TRAINED, Trajectory
from retcon.store import jsonl
from retcon.tasks.types import Task
from retcon.train.rl import run_rl
from retcon.train.rollouts import GroupStream, run_in_thread
from training import Graded, Ones, make_base, small_recipe

pytestmark = pytest.mark.torch
RL = {"prompts": 2, "group": 4, "steps": 6, "lr": 1e-3, "checkpoint_every": 1}
LONG = {"max_tokens": 60, "max_turns": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("ahead") / "base")


class Kept(Graded):
    """Every other step has long prompts, which leave little to write. Remembers what it graded."""

    seen: list[str]

    def train(self, seed: int) -> Any:
        for n, task in enumerate(super().train(seed)):
            yield replace(task, question="go " * (1 if n // 2 % 2 else 16))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """Over before what is under way beside it."""
        return [replace(task, question="go " * 16) for task in super().evaluation(count, seed)]

    def grade(self, task: Any, trajectory: Any) -> Any:
        self.seen.append(trajectory.id)
        return super().grade(task, trajectory)


def run(base: Path, out: Path, staleness: int, **sections: Any) -> tuple[list[dict[str, Any]], list[str]]:
    rl = {**RL, "max_staleness": staleness, **sections.pop("rl", {})}
    recipe = small_recipe(base, **{"rollout": LONG, "rl": rl, **sections})
    tasks = Kept(rewards=((1.0, -1.0, -1.0, 1.0),))
    object.__setattr__(tasks, "seen", [])
    lines: list[dict[str, Any]] = []
    run_rl(recipe, base, out, tasks=tasks, on_step=lambda line: lines.append(dict(line)))
    return lines, tasks.seen


def drawn(out: Path) -> list[str]:
    """The tasks of the steps whose rollouts are kept, in order."""
    found: list[str] = []
    for file in sorted((out / "trajectories").glob("step-*.jsonl*")):
        found += dict.fromkeys(t.task for t in jsonl.read(file))
    return found


@pytest.mark.parametrize("staleness", [1, 2])
def test_no_token_is_older_than_the_bound_and_some_are_old(base: Path, tmp_path: Path, staleness: int) -> None:
    lines, _ = run(base, tmp_path / "run", staleness)
    assert len(lines) == RL["steps"]
    assert max(line["staleness_max"] for line in lines) == staleness
    assert lines[0]["staleness_max"] == 0, "nothing was begun before the first step"
    assert all(0 <= line["staleness_mean"] <= line["staleness_max"] for line in lines)
    assert any(line["partial_rollouts"] > 0 for line in lines), "none was carried over a change of weights"
    last = list(jsonl.read(tmp_path / "run/trajectories/step-000006.jsonl"))
    for trajectory in last:
        for segment in trajectory.segments:
            if segment.kind in TRAINED and segment.ids:
                assert segment.versions is not None
                assert list(segment.versions) == sorted(segment.versions), "weights do not go back"
                assert set(segment.versions) <= set(range(5 - staleness, 6))


def test_prompts_are_those_of_a_run_that_waits_in_the_same_order(base: Path, tmp_path: Path) -> None:
    run(base, tmp_path / "waits", 0)
    lines, _ = run(base, tmp_path / "ahead", 2)
    assert drawn(tmp_path / "ahead") == drawn(tmp_path / "waits")
    assert [line["rollouts"] for line in lines] == [8] * RL["steps"]


@dataclass(frozen=True)
class Playing:
    """In the place of `TrainingRollouts`: a group of one rollout."""

    recipe: Recipe

    async def of(self, tasks: Sequence[Task], *, step: int) -> list[list[Trajectory]]:
        return [[Trajectory(f"{task.id}/{step}/0", task.id, (), ())] for task in tasks]


@pytest.mark.parametrize("ahead", [0, 2])
def test_groups_come_in_the_order_of_their_tasks_beside_them_and_named_after_their_step(ahead: int) -> None:
    recipe = Recipe.model_validate({"rl": {"prompts": 2, "steps": 4, "max_staleness": ahead}})

    async def taken() -> list[list[tuple[Task, list[Trajectory]]]]:
        async with GroupStream(Playing(recipe), Ones().train(0)) as stream:  # type: ignore[arg-type]
            return [await stream.take(2, step=step) for step in (1, 2, 3)]

    found = [(task.id, t.id) for groups in asyncio.run(taken()) for task, group in groups for t in group]
    assert found == [(f"ones/0/{n}", f"ones/0/{n}/{1 + n // 2}/0") for n in range(6)]


@pytest.mark.parametrize("ahead", [0, 2])
def test_prompts_that_run_out_are_reported_with_the_step_that_lacks_them(ahead: int) -> None:
    recipe = Recipe.model_validate({"rl": {"prompts": 2, "steps": 4, "max_staleness": ahead}})

    async def taken() -> None:
        three = islice(Ones().train(0), 3)
        async with GroupStream(Playing(recipe), three) as stream:  # type: ignore[arg-type]
            assert len(await stream.take(2, step=1)) == 2
            with pytest.raises(RecipeError, match=r"^step 2: the prompts have run out"):
                await stream.take(2, step=2)

    asyncio.run(taken())


@pytest.mark.parametrize(("last", "begun"), [(None, [6, 8, 8, 8]), (2, [4, 4])])
def test_as_many_are_begun_as_the_steps_to_come_can_take(last: int | None, begun: list[int]) -> None:
    names: list[int] = []

    class Noting(Playing):
        async def of(self, tasks: Sequence[Task], *, step: int) -> list[list[Trajectory]]:
            names.append(step)
            return await super().of(tasks, step=step)

    async def taken() -> list[int]:
        recipe = Recipe.model_validate({"rl": {"prompts": 2, "steps": 4, "max_staleness": 2}})
        found = []
        async with GroupStream(Noting(recipe), Ones().train(0), last=last) as stream:  # type: ignore[arg-type]
            for step in range(1, len(begun) + 1):
                await stream.take(2, step=step)
                await asyncio.sleep(0)  # what was begun starts
                found.append(len(names))
        return found

    assert asyncio.run(taken()) == begun
    assert names == sorted([1, 2, 3, 4] * 2)[: begun[-1]]


def test_a_killed_run_goes_on_with_the_prompts_that_no_step_has_had(base: Path, tmp_path: Path, zygote: Any) -> None:
    """SIGKILL in the middle of a step, with rollouts of later steps under way."""
    out = tmp_path / "run"
    recipe = small_recipe(base, rollout=LONG, rl={**RL, "max_staleness": 2, "steps": 5})
    pid = 0
    for name, value in zygote.run("rl", recipe, base, out):
        if name == "pid":
            pid = int(value)
        elif name == "step" and int(value) == 3:
            os.kill(pid, signal.SIGKILL)
    assert not (out / "final").exists()
    events = list(zygote.run("rl", recipe, base, out))
    assert ("exit", "0") in events
    whole = tmp_path / "whole"
    run_rl(
        recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"max_staleness": 0})}), base, whole, tasks=Ones()
    )
    last = [{t.task for t in jsonl.read(f / "trajectories/step-000005.jsonl")} for f in (out, whole)]
    assert last[0] == last[1]


def test_an_engine_that_cannot_carry_over_is_refused_before_any_work() -> None:
    with pytest.raises(RecipeError, match=r"rl: max_staleness = 1 needs an engine .* 'scripted' does not"):
        load_recipe(None, ["rl.max_staleness=1", 'engine.kind="scripted"'])


def test_an_update_beside_tools_is_waited_for_when_its_caller_is_cancelled() -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> int:
        began.set()
        assert may_end.wait(60)
        ended.set()
        return 7

    async def main() -> None:
        task = asyncio.create_task(run_in_thread(work))
        await asyncio.to_thread(began.wait)
        task.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        waits = not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert waits
        assert ended.is_set()
        assert await run_in_thread(work) == 7

    asyncio.run(main())
