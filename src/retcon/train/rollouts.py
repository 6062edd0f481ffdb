"""The rollouts of a training run: how many of each prompt, purified how."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.purify.mixing import Schedule, constant
from retcon.purify.saar import Saar
from retcon.rollout.repairs import saar_of
from retcon.rollout.world import World, open_rollout_chat, open_world
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task
from retcon.train.sync import EngineWeights

MAX_REQUESTS = 256
"""Rollouts that are decoded side by side at most."""


@dataclass(frozen=True, slots=True)
class TrainingRollouts:
    """Groups for training, from an engine whose weights `sync` keeps equal to the trained ones."""

    world: World
    tasks: TaskSet
    engine: LocalEngine
    weights: EngineWeights
    repair: Saar | None

    async def of(self, tasks: Sequence[Task], *, step: int) -> list[list[Trajectory]]:
        """A graded group of G' rollouts for every task; all that is random derives from (seed, step, task, index)."""
        recipe = self.world.recipe
        section = recipe.rollout
        return await self.world.roll_out(
            tasks,
            count=rollouts_per_prompt(recipe),
            sampling=SamplingParams(
                section.temperature, section.top_p, section.top_k, section.min_p, max_tokens=section.max_tokens
            ),
            seed=recipe.run.seed,
            step=step,
            grade=self.tasks.grade,
            repair=self.repair,
            probability=_mixing(recipe).at(step),
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
    chat = open_rollout_chat(recipe, tokenizer, tasks.system)
    engine = LocalEngine(
        weights.model,
        max_len=recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens,
        max_requests=min(recipe.rl.prompts * rollouts_per_prompt(recipe), MAX_REQUESTS),
        kv_memory_mb=recipe.compute.kv_memory_mb,
        reserved=reserved,
    )
    async with engine, open_world(recipe, engine, chat) as world:
        repair = None if recipe.repair.kind == "none" else saar_of(recipe.repair)
        yield TrainingRollouts(world, tasks, engine, weights, repair)


def rollouts_per_prompt(recipe: Recipe) -> int:
    """G': the rollouts made of each prompt, of which selection keeps G."""
    oversample = recipe.select.oversample if recipe.select.kind == "roc" else 1.0
    return math.ceil(recipe.rl.group * oversample)


def _mixing(recipe: Recipe) -> Schedule:
    section = recipe.repair
    return Schedule(section.probability_schedule) if section.probability_schedule else constant(section.probability)
