"""State shared by the rollouts of a verl worker: chat, sandbox, graders."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, Protocol

from retcon.build import build_chat, build_evaluation_context, build_repair, build_schedule, open_context, open_graded
from retcon.chat.chat import Chat
from retcon.config.schema import Recipe
from retcon.core.errors import EngineError, InfrastructureFault, RecipeError
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.engine.types import Generation, SamplingParams, check_params
from retcon.plugins.verl.settings import SECTION, Lengths, check_compatible, recipe_of, sampling_of
from retcon.plugins.verl.tasks import reading_of
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.group import rollout_member
from retcon.rollout.lengths import count_prompt_ids
from retcon.sandbox.pool import default_workers
from retcon.sandbox.types import Limits
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import FAMILY
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.registry import Grade, TaskSet, task_set
from retcon.tasks.types import Task

ABORTED = ("aborted", "abort")
REFUSALS = (ValueError, TypeError, AssertionError)
"""What verl's servers raise of a request that they will never serve; all else may pass."""


class Client(Protocol):
    """Used part of verl's `LLMServerClient`."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Return a `TokenOutput`."""
        ...


class ServerEngine:
    """A `Generator` over verl's client for one rollout, with its counters.

    logprobs: whether the servers are to give them: those of the distribution that was sampled from, as verl has them
    (`rollout.logprobs_mode`). The client routes by request id, so that a rollout stays where its prefix is cached.

    seconds: spent waiting for servers. preempted: times that they preempted its requests, None where they do not say.
    steps: the training steps whose weights sampled it. fault: of a server, the last one that it met.
    """

    def __init__(self, client: Client, *, logprobs: bool = False) -> None:
        self._client, self._logprobs = client, logprobs
        self.seconds = 0.0
        self.preempted: int | None = None
        self.steps: list[int] = []
        self.fault = ""

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`. Raises EngineError for what a server refuses, InfrastructureFault where it is gone, or gave
        the request up."""
        check_params(request_id, params)
        if params.stop:
            raise EngineError(
                f"request {request_id}: verl's servers do not give the ids of a stop string; use stop_ids"
            )
        output = await self._ask(request_id, ids, _vllm_params(params, self._logprobs))
        found = tuple(int(i) for i in output.token_ids)
        if output.stop_reason in ABORTED or not found:
            raise self._fault(f"request {request_id}: the server gave it up ({output.stop_reason})")
        self._count(output)
        logprobs = tuple(output.log_probs) if self._logprobs and output.log_probs else None
        ended = found[-1] in params.stop_ids  # verl calls both ends "completed"
        return Generation(found, logprobs, "stop" if ended else "length", version=_version(output.extra_fields))

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> None:
        """Do nothing: verl computes the log-probs of the whole sequence with its own weights."""

    async def release(self, request_id: str) -> None:
        """Do nothing: the servers evict what is not used."""

    async def _ask(self, request_id: str, ids: Sequence[int], asked: dict[str, Any]) -> Any:
        """The answer of the first server that does not fail; `RetconRouter` picks another one for each try."""
        from ray.exceptions import RayError, RayTaskError

        failed = getattr(getattr(self._client, "_load_balancer", None), "failed", None)
        began = time.perf_counter()
        try:
            for tried in count(1):
                try:
                    return await self._client.generate(request_id, prompt_ids=list(ids), sampling_params=asked)
                except RayError as error:
                    gone: object = f"verl's server is gone: {error}"
                    if isinstance(error, RayTaskError):
                        gone = repr(error.cause)
                    if isinstance(error, RayTaskError) and isinstance(error.cause, REFUSALS):
                        raise EngineError(f"request {request_id}: {error.cause}") from error
                    if failed is None or tried >= await failed.remote(request_id):
                        raise self._fault(f"request {request_id}: {gone}") from error
        finally:
            self.seconds += time.perf_counter() - began

    def _fault(self, what: str) -> InfrastructureFault:
        self.fault = what
        return InfrastructureFault(what)

    def _count(self, output: Any) -> None:
        if output.num_preempted is not None and output.num_preempted >= 0:
            self.preempted = (self.preempted or 0) + output.num_preempted
        about = output.extra_fields
        self.steps += [
            step for step in (about.get("min_global_steps"), about.get("max_global_steps")) if step is not None
        ]


def _vllm_params(params: SamplingParams, logprobs: bool) -> dict[str, Any]:
    """Sampling parameters in vLLM's terms."""
    return {
        "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k or -1, "min_p": params.min_p,
        "max_tokens": params.max_tokens, "stop_token_ids": list(params.stop_ids), "ignore_eos": True,
        "seed": params.seed, "repetition_penalty": 1.0, "logprobs": logprobs,
    }  # fmt: skip


def _version(about: dict[str, Any]) -> str | None:
    first, last = about.get("min_global_steps"), about.get("max_global_steps")
    return str(first) if first is not None and first == last else None


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
class VerlRollout:
    """A finished rollout. limits: its own. engine: its usage. size: of its group, lost rollouts included."""

    trajectory: Trajectory
    limits: RolloutLimits
    engine: ServerEngine
    validating: bool
    size: int

    @property
    def fault(self) -> str:
        """The fault of a server or tool that ended it, or ""."""
        if self.trajectory.stop != "infrastructure":
            return ""
        seen = (o.text for turn in self.trajectory.turns for o in turn.observations if o.status == "infrastructure")
        return self.engine.fault or next(seen, "it could not be graded, or a tool was not to be had")


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared state of rollouts (`open_shared`). client: of verl's servers. read: a row as a task."""

    recipe: Recipe
    lengths: Lengths
    client: Client
    context: RolloutContext
    read: Callable[[Mapping[str, Any]], Task]
    grade: Grade

    async def rollout(self, row: Mapping[str, Any], params: Mapping[str, Any]) -> VerlRollout:
        """Make the rollout of a row with verl's sampling parameters.

        All that is random derives from (seed, step, task, index), as in our own trainer; where a step has a task twice,
        as none of ours has, the indices of the second group go on from those of the first. While verl validates, it
        derives from those of the evaluation, and all is as [evaluate] says. Raises RecipeError for a row that cannot be
        read, EngineError where its prompt leaves no room.
        """
        for name, how in NEEDED.items():
            if row.get(name) is None:
                raise RecipeError(f"verl gives its agent loops no {name}: set {how}")
        recipe, task, validating = self.recipe, self.read(row), bool(row[VALIDATING])
        engine = ServerEngine(self.client, logprobs=bool(params.get("logprobs")) and not validating)
        sampling = sampling_of(params, recipe, self.lengths.whole(recipe))
        step, seed = int(row["global_steps"]), recipe.run.seed
        prompt = count_prompt_ids(self.context.chat, task)
        limits = self.lengths.limits(recipe, prompt)
        if prompt >= limits.max_tokens:
            raise EngineError(
                f"task {task.id}: its prompt has {prompt} tokens, tools included, of {limits.max_tokens}; raise "
                "data.max_prompt_length, or rollout.max_tokens of the recipe"
            )
        if validating:
            context = build_evaluation_context(recipe, self.context, sampling)
            step, seed = 0, derive("evaluation", recipe.evaluate.seed, "every")
        else:
            share = build_schedule(recipe).at(step)
            context = replace(self.context, sampling=sampling, repair=build_repair(recipe), probability=share)
        context = replace(context, engine=engine, limits=limits)
        index = int(row[FIRST]) + int(row["session_id"])
        trajectory = await rollout_member(task, context, index, seed=seed, step=step, grade=self.grade)
        return VerlRollout(trajectory, limits, engine, validating, int(row[SIZE]))


KEPT = "_retcon_shared"
"""Attribute of the client, of which verl has one a worker: its agent loops live for one rollout only, and as verl does
not announce a worker's end, what is kept here ends with the process."""


async def shared(client: Client, config: Any, tokenizer: Any) -> Shared:
    """Return the client's shared state, opened once, and anew after a failure.

    config: verl's. tokenizer: transformers', with the chat template that verl would have it use. Raises RecipeError,
    SandboxUnavailable, CheckpointError, MissingExtra, DataError for an unknown grader.
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
    """Open the shared state of a worker for a `with` block; raises as `shared` does."""
    recipe = recipe_of(config.get(SECTION))
    check_compatible(config, recipe)
    recipe = size_sandbox(recipe, config)
    family = None if isinstance(recipe.task, FileTaskSettings) else recipe.task.build()
    read, chat = reading_of(recipe.task, family), _chat_of(recipe, tokenizer)
    async with open_context(recipe, ServerEngine(client), chat) as context, _open_grade(recipe, family) as grade:
        yield Shared(recipe, Lengths.of(config), client, context, read, grade)


def size_sandbox(recipe: Recipe, config: Any) -> Recipe:
    """Divide the node's cores among its agent loops' sandboxes. Does nothing where `sandbox.workers` is set."""
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
    """The grading of rollouts: the task family's own, or the grader that a row of data names."""
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
