"""The rollouts of a training run: how many of each prompt, purified how, from weights that change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from retcon.build import build_chat, build_repair, build_schedule, build_training_engine, open_context, open_graded
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.engine.types import TrainableEngine
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_groups
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task
from retcon.train.sync import EngineWeights


@dataclass(frozen=True, slots=True)
class TrainingRollouts:
    """Groups for training, from an engine whose weights `sync` keeps equal to the trained ones."""

    recipe: Recipe
    context: RolloutContext
    tasks: TaskSet
    engine: TrainableEngine
    weights: EngineWeights

    async def of(self, tasks: Sequence[Task], *, step: int) -> list[list[Trajectory]]:
        """A graded group of G' rollouts for every task; all that is random derives from (seed, step, task, index)."""
        return await rollout_groups(
            tasks,
            replace(self.context, probability=build_schedule(self.recipe).at(step)),
            count=self.recipe.select.made(self.recipe.rl.group),
            seed=self.recipe.run.seed,
            step=step,
            grade=self.tasks.grade,
        )

    def rest(self) -> None:
        """Before an update, which makes them worthless: the engine gives the memory of its keys and values back, so
        that it does not stand beside gradients and activations."""
        self.engine.invalidate()

    def sync(self) -> None:
        """After an update: the engine gets the new weights, and forgets the keys and values of the old."""
        self.weights.sync()
        self.engine.invalidate()


@asynccontextmanager
async def open_rollouts(
    recipe: Recipe, weights: EngineWeights, tokenizer: Path, tasks: TaskSet, *, reserved: int = 0
) -> AsyncIterator[TrainingRollouts]:
    """The rollouts of `weights`, their sandbox started. reserved: bytes that the trainer will take and keep while
    rollouts are made. Raises SandboxUnavailable, CheckpointError, EngineError."""
    chat = build_chat(recipe, tokenizer, tasks)
    side_by_side = recipe.rl.prompts * recipe.select.made(recipe.rl.group)
    engine = build_training_engine(recipe, weights.model, chat, max_requests=side_by_side, reserved=reserved)
    async with engine, open_context(recipe, engine, chat) as context, open_graded(tasks) as graded:
        yield TrainingRollouts(recipe, replace(context, repair=build_repair(recipe)), graded, engine, weights)
