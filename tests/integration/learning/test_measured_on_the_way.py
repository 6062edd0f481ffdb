"""Evaluations on the way: their random streams, their sampling, whose problems and limits they have, and the last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch

from keys.acting import Lab, run
from keys.rollouts import scripted
from retcon.build import build_tasks
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.seeds import derive
from retcon.core.types import ToolCall, Trajectory
from retcon.engine.types import SamplingParams
from retcon.models.placing import start_model
from retcon.runs import folder as cost
from retcon.tasks.types import Task
from retcon.train.rl import run_rl
from retcon.train.rollouts import EngineWeights, TrainingRollouts, open_rollouts, rollouts_for
from training import Ones, small_recipe

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("on-the-way"))


@dataclass(frozen=True)
class Noting(Ones):
    """Notes the seeds of the rollouts that it grades. seeds: id to seed."""

    seeds: dict[str, int | None] = field(default_factory=dict)

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        self.seeds[trajectory.id] = trajectory.provenance.seed
        return super().grade(task, trajectory)


GIVEN = ("rollout.max_tokens=200", "evaluate.problems=2", "evaluate.every_samples=2", "rollout.temperature=0.7",
         "rollout.top_p=0.5", "rollout.top_k=3", "rollout.min_p=0.1")  # fmt: skip


def evaluated(lab: Lab, *keys: str) -> tuple[dict[str, int | None], list[SamplingParams]]:
    """Seeds of the rollouts by id, and how they were sampled."""

    async def measured() -> tuple[dict[str, int | None], list[SamplingParams]]:
        tasks = Noting()
        async with scripted(load_recipe(None, [*GIVEN, *keys]), lab, ["1"]) as rollouts:
            own = TrainingRollouts(rollouts.recipe, rollouts.context, tasks, rollouts.engine, rollouts.weights)
            await own.evaluated()
            return tasks.seeds, rollouts.context.engine.params

    found: tuple[dict[str, int | None], list[SamplingParams]] = run(measured())
    return found


@pytest.mark.parametrize("keys", [(), ("run.seed=5",), ("evaluate.seed=7",)], ids=["", "another run", "other problems"])
def test_their_random_streams_are_those_of_the_evaluation_in_every_run(keys: tuple[str, ...], lab: Lab) -> None:
    """A curve would follow the run's own seed otherwise, and runs would not be measured alike."""
    seeds, _ = evaluated(lab, *keys)
    stream = derive("evaluation", 7 if "evaluate.seed=7" in keys else 1000, "every")
    names = [(f"ones/evaluation/{n}", index) for n in range(2) for index in range(2)]
    assert seeds == {f"{task}/0/{index}": derive("rollout", stream, 0, task, index) for task, index in names}


ROOMY = ("rollout.max_tokens=400", "sandbox.workers=1", "sandbox.output_chars=90", "compute.device=cpu")


async def seen_by(rollouts: TrainingRollouts) -> tuple[str, int, int]:
    """The question of a problem, the turns of a rollout, and the letters that a tool may put out."""
    (problem,) = rollouts.tasks.evaluation(1, 0)
    tool = rollouts.context.tools["python"]
    printed = await tool(ToolCall("0.0", "python", {"code": "print('x' * 500)"}, 0))  # type: ignore[operator]
    return problem.question, rollouts.context.limits.max_turns, printed.text.count("x")


@pytest.mark.parametrize(
    "change", ["task.steps=3", "rollout.max_turns=1", "sandbox.output_chars=40", "rl.lr=0.1"], ids=lambda key: key
)
def test_what_a_stage_changes_is_not_changed_where_it_is_measured(change: str, lab: Lab) -> None:
    own, stage = load_recipe(None, ROOMY), load_recipe(None, [*ROOMY, change])

    async def seen() -> list[tuple[str, int, int]]:
        weights = EngineWeights(start_model(lab.base, 0), torch.float32)
        found = []
        for recipe in (own, stage):
            async with (
                open_rollouts(recipe, weights, lab.base, build_tasks(recipe, lab.base)) as rollouts,
                rollouts_for(own, rollouts, lab.base, build_tasks(own, lab.base)) as measured,
            ):
                assert measured.recipe is own
                found.append(await seen_by(measured))
        return found

    one, other = asyncio.run(seen())
    assert one == other


def bounded(lab: Lab, seconds: float) -> Recipe:
    learning = {"prompts": 1, "group": 2, "steps": 9, "checkpoint_every": 100, "max_cpu_seconds": seconds}
    evaluate = {"problems": 1, "every_samples": 1, "every": 100}
    return small_recipe(lab.base, rl=learning, rollout={"max_tokens": 16}, repair={"kind": "none"}, evaluate=evaluate)


@pytest.mark.parametrize("seconds", [1.0, 2.0])
def test_the_last_step_is_measured_wherever_within_it_the_seconds_are_spent(
    seconds: float, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """.9999 s pass between any two looks at the clock, so that some look is the first that is late."""
    clock: Iterator[float] = (0.9999 * n for n in count())
    monkeypatch.setattr(cost, "cpu_seconds", lambda: next(clock))
    lines: list[Mapping[str, float | None]] = []
    run_rl(bounded(lab, seconds), lab.base, lab.out(), tasks=Ones(), on_step=lines.append)
    assert 1 <= len(lines) < 9
    assert [line["step"] for line in lines if "eval_rollouts" in line] == [len(lines)]
    assert [(line["cpu_s"] or 0.0) >= seconds for line in lines] == [False] * (len(lines) - 1) + [True]
