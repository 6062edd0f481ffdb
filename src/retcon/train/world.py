"""What the rollouts of a training run live in: engine, tool, chat, task, repair; built once, from the recipe."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transformers import PreTrainedModel

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import load_tokenizer
from retcon.config.schema import Recipe
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.engine.local import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.purify.saar import Saar
from retcon.rollout.group import rollout_groups
from retcon.rollout.limits import Limits
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits as SandboxLimits
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task
from retcon.tools.python import PythonTool
from retcon.tools.types import Tool

MAX_REQUESTS = 256
"""Rollouts that are decoded side by side at most."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a rollout of this run needs, but for its task."""

    recipe: Recipe
    tasks: TaskSet
    chat: Chat
    engine: LocalEngine
    tool: Tool
    repair: Saar | None

    async def roll_out(self, tasks: Sequence[Task], *, step: int) -> list[list[Trajectory]]:
        """A graded group of G' rollouts for every task; all that is random derives from (seed, step, task, index)."""
        section = self.recipe.rollout
        return await rollout_groups(
            tasks,
            count=rollouts_per_prompt(self.recipe),
            engine=self.engine,
            tools={self.tool.name: self.tool},
            chat=self.chat,
            limits=Limits(section.max_ids, section.max_turns, section.lookahead_ids),
            sampling=SamplingParams(section.temperature, section.top_p, max_tokens=section.max_ids),
            seed=self.recipe.run.seed,
            step=step,
            grade=self.tasks.grade,
            repair=self.repair,
            probability=self.recipe.repair.probability,
        )

    def prompts(self, *, after: int) -> Iterator[list[Task]]:
        """The tasks of each step after step `after`: a seeded stream, of which demonstrations use another one."""
        size = self.recipe.rl.prompts
        stream = self.tasks.train(derive("prompts", self.recipe.run.seed))
        for _ in islice(stream, after * size):
            pass
        while True:
            yield list(islice(stream, size))


@asynccontextmanager
async def open_world(recipe: Recipe, model: PreTrainedModel, tokenizer: Path, tasks: TaskSet) -> AsyncIterator[World]:
    """The world around `model`, its sandbox started. Raises SandboxUnavailable, CheckpointError, EngineError."""
    section = recipe.sandbox
    chat = Chat(load_tokenizer(tokenizer), style=recipe.model.style, system=tasks.system)
    rollouts = recipe.rl.prompts * rollouts_per_prompt(recipe)
    engine = LocalEngine(
        model,
        max_len=recipe.rollout.max_ids + recipe.rollout.lookahead_ids,
        max_requests=min(rollouts, MAX_REQUESTS),
    )
    limits = SandboxLimits(
        cpu_seconds=section.cpu_seconds, wall_seconds=section.wall_seconds, memory_mb=section.memory_mb
    )
    async with engine, SandboxPool(workers=section.workers, limits=limits) as sandbox:
        tool = PythonTool(sandbox, output_chars=section.output_chars)
        yield World(recipe, tasks, chat, engine, tool, _repair(recipe))


def rollouts_per_prompt(recipe: Recipe) -> int:
    """G': the rollouts made of each prompt, of which selection keeps G."""
    oversample = recipe.select.oversample if recipe.select.kind == "roc" else 1.0
    return math.ceil(recipe.rl.group * oversample)


def _repair(recipe: Recipe) -> Saar | None:
    section = recipe.repair
    if section.kind == "none":
        return None
    return Saar(section.attempts, section.gamma, section.lookahead, frozenset(section.failures))
