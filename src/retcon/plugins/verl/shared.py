"""What the rollouts of one of verl's workers share: chat, sandbox and graders, opened with the first of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from retcon.build import build_chat, build_repair, build_schedule, measuring, open_context, open_graded
from retcon.chat.chat import Chat
from retcon.config.schema import Recipe
from retcon.core.errors import EngineError, RecipeError
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.plugins.verl.engine import Client, ServerEngine
from retcon.plugins.verl.settings import SECTION, Lengths, recipe_of, refuse_unfit, sampling_of
from retcon.plugins.verl.tasks import reading_of
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.member import rollout_member
from retcon.rollout.prompts import prompt_ids
from retcon.sandbox.pool import default_workers
from retcon.sandbox.types import Limits
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import FAMILY
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.registry import Grade, TaskSet, task_set
from retcon.tasks.types import Task

VALIDATING = "retcon_validating"
"""What the manager adds to a batch: verl tells an agent loop nothing of whether it validates."""
FIRST = "retcon_first"
SIZE = "retcon_size"
"""What it adds to a row: its group's first index, after those of the same task in its step, and how many there are."""
NEEDED = {
    "session_id": "trainer.use_v1 = true",
    "global_steps": "trainer.use_v1 = true",
    VALIDATING: "actor_rollout_ref.rollout.agent.agent_loop_manager_class = retcon.plugins.verl.manager.RetconManager",
}


@dataclass(frozen=True, slots=True)
class Rolled:
    """A rollout that is over. limits: its own. engine: what it took. size: rollouts of its group, lost ones among
    them."""

    trajectory: Trajectory
    limits: RolloutLimits
    engine: ServerEngine
    validating: bool
    size: int

    @property
    def fault(self) -> str:
        """Of the server, or of a tool, that ended it; empty where none did."""
        if self.trajectory.stop != "infrastructure":
            return ""
        seen = (o.text for turn in self.trajectory.turns for o in turn.observations if o.status == "infrastructure")
        return self.engine.fault or next(seen, "it could not be graded, or a tool was not to be had")


@dataclass(frozen=True, slots=True)
class Shared:
    """See `open_shared`. client: of verl's servers. read: a row as a task."""

    recipe: Recipe
    lengths: Lengths
    client: Client
    context: RolloutContext
    read: Callable[[Mapping[str, Any]], Task]
    grade: Grade

    async def rollout(self, row: Mapping[str, Any], told: Mapping[str, Any]) -> Rolled:
        """The rollout that verl asks for: of a row, with how it is to be sampled.

        All that is random derives from (seed, step, task, index), as in our own trainer; where a step has a task twice,
        as none of ours has, the indices of the second group go on from those of the first. While verl validates, it
        derives from those of the evaluation, and all is as [evaluate] says. Raises RecipeError for a row that cannot be
        read, EngineError where its prompt leaves no room.
        """
        for name, how in NEEDED.items():
            if row.get(name) is None:
                raise RecipeError(f"verl gives its agent loops no {name}: set {how}")
        recipe, task, validating = self.recipe, self.read(row), bool(row[VALIDATING])
        engine = ServerEngine(self.client, logprobs=bool(told.get("logprobs")) and not validating)
        sampling = sampling_of(told, recipe, self.lengths.whole(recipe))
        step, seed = int(row["global_steps"]), recipe.run.seed
        prompt = prompt_ids(self.context.chat, task)
        limits = self.lengths.limits(recipe, prompt)
        if prompt >= limits.max_tokens:
            raise EngineError(
                f"task {task.id}: its prompt has {prompt} tokens, tools included, of {limits.max_tokens}; raise "
                "data.max_prompt_length, or rollout.max_tokens of the recipe"
            )
        if validating:
            context = measuring(recipe, self.context, sampling)
            step, seed = 0, derive("evaluation", recipe.evaluate.seed, "every")
        else:
            share = build_schedule(recipe).at(step)
            context = replace(self.context, sampling=sampling, repair=build_repair(recipe), probability=share)
        context = replace(context, engine=engine, limits=limits)
        index = int(row[FIRST]) + int(row["session_id"])
        trajectory = await rollout_member(task, context, index, seed=seed, step=step, grade=self.grade)
        return Rolled(trajectory, limits, engine, validating, int(row[SIZE]))


KEPT = "_retcon_shared"
"""Of the client, of which verl makes one for a worker: it makes an agent loop for each rollout, which can keep nothing,
and tells nobody of a worker's end, which is also that of what is kept here."""


async def shared(client: Client, config: Any, tokenizer: Any) -> Shared:
    """What the rollouts over this client share, opened by the first of them, and anew after a failure.

    config: verl's. tokenizer: transformers', with the chat template that verl would have it use. Raises RecipeError,
    SandboxUnavailable, CheckpointError, MissingExtra, DataError for a grader that there is not.
    """
    opening: asyncio.Task[tuple[AsyncExitStack, Shared]] | None = getattr(client, KEPT, None)
    if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
        opening = asyncio.ensure_future(_opened(client, config, tokenizer))
        setattr(client, KEPT, opening)
    return (await asyncio.shield(opening))[1]


async def _opened(client: Client, config: Any, tokenizer: Any) -> tuple[AsyncExitStack, Shared]:
    stack = AsyncExitStack()
    return stack, await stack.enter_async_context(open_shared(client, config, tokenizer))


@asynccontextmanager
async def open_shared(client: Client, config: Any, tokenizer: Any) -> AsyncIterator[Shared]:
    """As `shared`, for as long as it is needed."""
    recipe = recipe_of(config.get(SECTION))
    refuse_unfit(config, recipe)
    recipe = size_sandbox(recipe, config)
    family = None if isinstance(recipe.task, FileTaskSettings) else recipe.task.build()
    read, chat = reading_of(recipe.task, family), _chat_of(recipe, tokenizer)
    async with open_context(recipe, ServerEngine(client), chat) as context, _open_grade(recipe, family) as grade:
        yield Shared(recipe, Lengths.of(config), client, context, read, grade)


def size_sandbox(recipe: Recipe, config: Any) -> Recipe:
    """Divide the node's cores among its agent loops, each of which has a sandbox, unless `sandbox.workers` is set."""
    section = recipe.sandbox
    if "workers" in section.model_fields_set:
        return recipe
    loops = ceil(config.actor_rollout_ref.rollout.agent.num_workers / config.trainer.nnodes)
    workers = max(section.workers, default_workers(Limits(memory_mb=section.memory_mb)) // loops)
    return recipe.model_copy(update={"sandbox": section.model_copy(update={"workers": workers})})


def _chat_of(recipe: Recipe, tokenizer: Any) -> Chat:
    with tempfile.TemporaryDirectory(prefix="retcon-verl-") as folder:
        tokenizer.save_pretrained(folder)
        return build_chat(recipe, Path(folder))


@asynccontextmanager
async def _open_grade(recipe: Recipe, family: TaskSet | None) -> AsyncIterator[Grade]:
    """How rollouts are graded: by the task family's own way, or by the grader that a row of data names."""
    if family is not None:
        async with open_graded(family) as tasks:
            yield tasks.grade
        return
    section = recipe.task
    assert isinstance(section, FileTaskSettings)
    async with Grading(GradeSettings(rewards=section.rewards, options=section.graders)) as grading:

        async def grade(task: Task, trajectory: Trajectory) -> Trajectory:
            family = task.meta.get(FAMILY)
            if not isinstance(family, str):
                return await grading.reward(task, trajectory)
            graded = task_set(family).grade(task, trajectory)
            return graded if isinstance(graded, Trajectory) else await graded

        yield grade
