"""What rollouts live in, built once from a recipe: engine, chat, sandbox and tool. Training, evaluation and
demonstrations roll out in the same one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retcon.chat.chat import Chat
from retcon.chat.opening import open_chat
from retcon.config.schema import Recipe, SandboxSection
from retcon.core.types import Trajectory
from retcon.engine.types import Generator, SamplingParams
from retcon.purify.types import Repair
from retcon.rollout.group import Grade, rollout_groups
from retcon.rollout.limits import Limits
from retcon.sandbox.client import SandboxRouter, token_from_environment
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits as SandboxLimits
from retcon.sandbox.types import Sandbox
from retcon.tasks.types import Task
from retcon.tools.loading import load_tools
from retcon.tools.python import PythonTool
from retcon.tools.schema import python_spec
from retcon.tools.sessions import PythonSessions
from retcon.tools.types import StatefulTool, Tool

PYTHON = "python"
SESSIONS = 512
"""At a time at most: two for each of the 256 rollouts that engines decode side by side, as one whose interpreter ended
in a turn that may be rolled back has another besides. A rollout that waited for a place would leave its row of the
batch empty."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a rollout needs, but for its task, its seeds and what to do about failures.

    tool: Python; others: by name, those besides it.
    """

    recipe: Recipe
    engine: Generator
    chat: Chat
    tool: Tool | StatefulTool
    others: Mapping[str, Tool | StatefulTool] = field(default_factory=dict)

    async def roll_out(
        self,
        tasks: Sequence[Task],
        *,
        count: int,
        sampling: SamplingParams,
        seed: int,
        step: int,
        grade: Grade,
        repair: Repair | None = None,
        probability: float = 1.0,
        model: str | None = None,
    ) -> list[list[Trajectory]]:
        """`count` graded rollouts of every task, within the recipe's limits; see `rollout_groups`."""
        section = self.recipe.rollout
        return await rollout_groups(
            tasks,
            count=count,
            engine=self.engine,
            tools={self.tool.name: self.tool, **self.others},
            chat=self.chat,
            limits=Limits(section.max_tokens, section.max_turns, section.lookahead_tokens),
            sampling=sampling,
            seed=seed,
            step=step,
            grade=grade,
            repair=repair,
            probability=probability,
            model=model,
        )


@asynccontextmanager
async def open_world(recipe: Recipe, engine: Generator, chat: Chat) -> AsyncIterator[World]:
    """The world of a recipe, its sandbox started; the engine is the caller's. Raises SandboxUnavailable, RecipeError
    for a tool that cannot be had."""
    section = recipe.sandbox
    others = _others(recipe)
    async with _open_sandbox(section) as sandbox:
        tool = PythonSessions if section.sessions else PythonTool
        yield World(recipe, engine, chat, tool(sandbox, output_chars=section.output_chars), others)


def open_rollout_chat(recipe: Recipe, folder: Path, system: str | None = None) -> Chat:
    """The chat of the rollouts of a recipe with the model in a folder, as `open_chat`; it shows the recipe's tools."""
    python = python_spec(keeps_state=recipe.sandbox.sessions)
    tools = [python, *(tool.spec for tool in _others(recipe).values())]
    model = recipe.model
    thinking = None if model.thinking == "default" else model.thinking == "on"
    return open_chat(folder, style=model.style, system=system, tools=tools, thinking=thinking)


def _others(recipe: Recipe) -> Mapping[str, Tool | StatefulTool]:
    return load_tools(recipe.rollout.tools, taken=[PYTHON])


@asynccontextmanager
async def _open_sandbox(section: SandboxSection) -> AsyncIterator[Sandbox]:
    """The recipe's servers, or a pool of workers here."""
    limits = SandboxLimits(
        cpu_seconds=section.cpu_seconds, wall_seconds=section.wall_seconds, memory_mb=section.memory_mb
    )
    if section.url:
        async with SandboxRouter(section.url, token=token_from_environment(), limits=limits) as router:
            yield router
    else:
        async with SandboxPool(workers=section.workers, limits=limits, sessions=SESSIONS) as pool:
            yield pool
