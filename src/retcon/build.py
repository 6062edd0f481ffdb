"""Builders of a recipe's objects, the only ones; torch is imported only when needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retcon.config.schema import Recipe, SandboxSection
from retcon.core.errors import MissingExtra, RecipeError
from retcon.core.installing import how_to_install
from retcon.core.types import ToolSpec
from retcon.engine.types import Adapters, Connectable, EngineSetup, Generator, SamplingParams, TrainableEngine
from retcon.purify.types import Repair
from retcon.rollout.context import Probes, Schedule, constant
from retcon.rollout.lengths import DerivedLength, context_of, count_prompt_ids, derive_lengths, open_keys, with_lengths
from retcon.rollout.strategy import Strategy
from retcon.sandbox.types import Limits, Sandbox, SessionBounds
from retcon.tasks.registry import CheckedGrades, TaskSet, Ungraded, check_task_set, grader_options
from retcon.tasks.types import Task
from retcon.tools.types import AnyTool, TaskTool

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from retcon.chat.chat import Chat
    from retcon.models.devices import OnPlace
    from retcon.rollout.context import Harness, RolloutContext, RolloutLimits, SubcallLimits
    from retcon.tools.kinds.rlm import RlmPrompts

MAX_REQUESTS = 256
"""Most rollouts decoded at a time."""
SESSIONS = 2 * MAX_REQUESTS
"""Most interpreters at a time: two for each of those rollouts, as one whose interpreter ended in a turn that may be
rolled back needs another. A rollout that waited for an interpreter would leave its row of the batch empty."""


def build_tasks(recipe: Recipe, folder: Path | None = None) -> TaskSet:
    """Build the recipe's task set. folder: of the model that solves its tasks, whose tokenizer measures prompts where
    they are limited; None without one.

    Raises RecipeError, also where a user's class does not build a task set, and errors of reading its data; with a
    folder RetconError where a grader of its tasks is unavailable (`check_grader`).
    """
    chats: list[Chat] = []

    def count_tokens(task: Task) -> int:
        if not chats:
            chats.append(build_engine_chat(without_harness(recipe), folder or Path()))
        return count_prompt_ids(chats[0], task)

    tasks: TaskSet = recipe.task.build(count_tokens if folder is not None else None)
    check_task_set(tasks, recipe.task.kind)
    if folder is not None and isinstance(tasks, Ungraded):
        from retcon.tasks.grading.registry import check_grader

        for name in sorted(tasks.graders):
            # Before a run has a folder, not when its first rollout is graded.
            check_grader(name, grader_options(tasks), "task.graders")
    return tasks


def resolve_lengths(recipe: Recipe, folder: Path, tasks: TaskSet | None = None) -> tuple[Recipe, list[DerivedLength]]:
    """Fill in the recipe's open lengths, and return these too. Model and prompts set them (`retcon.rollout.lengths`).
    folder: of the model. tasks: those of `build_tasks`, where they have been built.

    Raises RecipeError, and what `build_tasks` and `build_chat` raise.
    """
    if not open_keys(recipe):
        return recipe, []
    tasks = tasks or build_tasks(recipe, folder)
    room = recipe.engine.room() or context_of(folder)
    chat = build_engine_chat(without_harness(recipe), folder, tasks)  # which no length depends on
    derived = derive_lengths(recipe, chat, tasks, room)
    return with_lengths(recipe, derived), derived


def without_harness(recipe: Recipe) -> Recipe:
    """Return the recipe without its harness, for work that makes no rollouts."""
    return recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"harness": ""})})


@dataclass(frozen=True, slots=True)
class Graded:
    """A task set with its graders. rewarded: for training, with the rewards that the set gives to verdicts. judged:
    for measuring, with a reward above 0 exactly where a grader finds the answer right, whatever its score."""

    rewarded: TaskSet
    judged: TaskSet


@asynccontextmanager
async def open_graders(tasks: TaskSet) -> AsyncIterator[Graded]:
    """Open the graders of a task set, where it is `Ungraded`. They start their processes when a task first needs them;
    an invalid grade costs its rollout (`CheckedGrades`). Raises RecipeError for an unknown grader."""
    if not isinstance(tasks, Ungraded):
        yield Graded(checked := CheckedGrades(tasks), checked)
        return
    from retcon.tasks.grading.grading import GradeSettings, Grading

    async with Grading(GradeSettings(rewards=tasks.rewards, options=grader_options(tasks))) as grading:
        rewarded = CheckedGrades(tasks.graded_by(grading.reward))
        scores = tasks.rewards == "graded"
        yield Graded(rewarded, CheckedGrades(tasks.graded_by(grading.right)) if scores else rewarded)


@asynccontextmanager
async def open_graded(tasks: TaskSet) -> AsyncIterator[TaskSet]:
    """Open the task set with the rewards of training. Raises RecipeError for an unknown grader."""
    async with open_graders(tasks) as graders:
        yield graders.rewarded


def build_chat(recipe: Recipe, folder: Path, tasks: TaskSet | None = None) -> Chat:
    """Build the chat of a folder's model with the recipe's tools. tasks: give its system prompt.

    Raises CheckpointError, RecipeError (also for a tool that its style cannot call), MissingExtra without the
    tokenizers package.
    """
    thinking = None if recipe.model.thinking == "default" else recipe.model.thinking == "on"
    specs = build_specs(recipe)
    from retcon.chat.opening import open_chat

    variables = recipe.model.chat_template_kwargs
    chat = open_chat(
        folder,
        style=recipe.model.style,
        system=_system(recipe, tasks),
        tools=specs,
        thinking=thinking,
        variables=variables,
    )
    _check_callable(chat, specs, "model.style = 'hermes' or 'qwen', whose calls do")
    return chat


def build_engine_chat(recipe: Recipe, folder: Path, tasks: TaskSet | None = None) -> Chat:
    """Build the chat of the recipe's engine: its own, or else the model's (`build_chat`).
    Raises as `build_chat`, and RecipeError for a `model.thinking` that the engine would ignore."""
    specs = build_specs(recipe)
    own: Chat | None = recipe.engine.chat(folder, _system(recipe, tasks), specs)
    if own is None:
        return build_chat(recipe, folder, tasks)
    kwargs = recipe.model.chat_template_kwargs
    if kwargs or recipe.model.thinking != "default":
        key = f"chat_template_kwargs = {kwargs}" if kwargs else f"thinking = '{recipe.model.thinking}'"
        raise RecipeError(
            f"model.{key}: with engine.kind = '{recipe.engine.kind}' the template that "
            "reads it is the server's: set it there, and leave it out here"
        )
    _check_callable(own, specs, "engine.calls = 'native', whose calls do")
    return own


def _check_callable(chat: Chat, specs: Sequence[ToolSpec], instead: str) -> None:
    """Raise RecipeError for tools that this chat's calls cannot name: the model could never call them."""
    unnamed = [repr(spec.name) for spec in specs if spec.name != "python"]  # calls without a name are python's
    if unnamed and not chat.family.names_calls:
        raise RecipeError(
            f"the model cannot call the tool {', '.join(unnamed)}: calls of chat style '{chat.family.name}' are "
            f"blocks of Python, which name no tool: set {instead}"
        )


def _system(recipe: Recipe, tasks: TaskSet | None) -> str | None:
    if tasks is not None and tasks.system is not None:
        return tasks.system
    prompts = _prompts(recipe)
    return prompts.system if prompts else None


def _prompts(recipe: Recipe) -> RlmPrompts | None:
    if not recipe.subcalls.prompts:
        return None
    from retcon.tools.kinds.rlm import find_prompts

    return find_prompts(recipe.subcalls.prompts)


def build_specs(recipe: Recipe) -> list[ToolSpec]:
    """Return the specs of the recipe's tools and of its tasks' tools. Raises RecipeError, also for an unavailable
    harness."""
    from retcon.serve.harness import find_harness
    from retcon.tools.loading import find_tools

    brought = recipe.task.tools(recipe)
    if recipe.rollout.harness:  # before a run exists, like tools
        find_harness(recipe.rollout.harness)
        if any(isinstance(tool, TaskTool) for tool in brought):
            raise RecipeError(
                f"rollout.harness: the tools of task.kind = '{recipe.task.kind}' begin with a task, and what is graded "
                "is the state that a rollout leaves them in; a harness's requests share no state: leave it out"
            )
    named = [kind.spec(sessions=recipe.sandbox.sessions) for kind in find_tools(recipe.rollout.tools)]
    return [*named, *(tool.spec for tool in brought)]


def build_subcalls(recipe: Recipe) -> SubcallLimits:
    from retcon.rollout.context import CONTEXT_QUESTION, SubcallLimits

    limits = SubcallLimits(**recipe.subcalls.model_dump(exclude={"prompts"}))
    prompts = _prompts(recipe)
    return replace(limits, question=partial(prompts.question, CONTEXT_QUESTION)) if prompts else limits


def build_limits(recipe: Recipe) -> RolloutLimits:
    from retcon.rollout.context import RolloutLimits

    section = recipe.rollout
    return RolloutLimits(section.max_tokens, section.max_turns, section.lookahead_tokens, section.max_response_tokens)


def build_sampling(recipe: Recipe) -> SamplingParams:
    """Return the sampling of training rollouts, and of measurements that imitate them."""
    section = recipe.rollout
    return SamplingParams(
        section.temperature, section.top_p, section.top_k, section.min_p, max_tokens=section.max_tokens
    )


def build_plain_sampling(recipe: Recipe) -> SamplingParams:
    """Return the sampling of the plain model, not the recipe's: T = 1, no cut-offs."""
    return SamplingParams(max_tokens=recipe.rollout.max_tokens)


def build_repair(recipe: Recipe) -> Repair | None:
    repair: Repair | None = recipe.repair.build()
    return repair


def build_strategy(recipe: Recipe) -> Strategy | None:
    """Return the strategy that branches training rollouts, None without one."""
    section: Any = recipe.strategy
    return section if section.branching else None


def with_evaluation_repair(recipe: Recipe) -> Recipe:
    """Return the recipe with the [repair] of its evaluations. It is of the kind `evaluate.repair`: the recipe's own
    section where that is of this kind, else the kind's defaults."""
    kind = recipe.evaluate.repair
    section = recipe.repair if recipe.repair.kind == kind else type(recipe.repair).kinds.find(kind)()
    return recipe.model_copy(update={"repair": section})


def build_evaluation_repair(recipe: Recipe) -> Repair | None:
    """Build the repair of failed turns in evaluations."""
    return build_repair(with_evaluation_repair(recipe))


def build_schedule(recipe: Recipe) -> Schedule:
    """Build the schedule of the share of purified rollouts by step."""
    section = recipe.repair
    return Schedule(section.probability_schedule) if section.probability_schedule else constant(section.probability)


def build_step_context(recipe: Recipe, context: RolloutContext, step: int) -> RolloutContext:
    """Return the context with a step's share of purified rollouts."""
    section = recipe.repair
    probes = Probes(section.probes, section.least_probability) if section.probes else None
    return replace(context, probability=build_schedule(recipe).at(step), probes=probes)


def build_tools(recipe: Recipe, sandbox: Sandbox) -> dict[str, AnyTool]:
    """Build the tools of recipe and tasks, by name. Raises RecipeError where two have the same name."""
    from retcon.tools.loading import ToolSetup, find_tools

    section = recipe.sandbox
    reuse = _call_limits(section) if section.reuse else None
    setup = ToolSetup(sandbox, output_chars=section.output_chars, sessions=section.sessions, reuse=reuse)
    tools: dict[str, AnyTool] = {
        tool.name: tool for tool in (kind.build(setup) for kind in find_tools(recipe.rollout.tools))
    }
    if any(isinstance(tool, TaskTool) for tool in tools.values()):
        if recipe.strategy.branching:
            raise RecipeError("rollout.tools: rlm cannot be branched from: set strategy.kind to independent")
        if section.url:
            raise RecipeError("rollout.tools: rlm needs a sandbox of this process: leave sandbox.url out")
    for tool in recipe.task.tools(recipe):
        if tool.name in tools:
            raise RecipeError(
                f"rollout.tools: [task] brings a tool called {tool.name!r} as well: leave one of them out"
            )
        tools[tool.name] = tool
    return tools


def _call_limits(section: SandboxSection) -> Limits:
    return Limits(cpu_seconds=section.cpu_seconds, wall_seconds=section.wall_seconds, memory_mb=section.memory_mb)


@asynccontextmanager
async def open_sandbox(section: SandboxSection) -> AsyncIterator[Sandbox]:
    """Open the recipe's sandbox servers, or a local pool. Raises SandboxUnavailable, RecipeError."""
    limits = _call_limits(section)
    if section.url:
        from retcon.sandbox.client import SandboxRouter, token_from_environment

        token, outage = token_from_environment(), section.patience
        async with SandboxRouter(section.url, token=token, limits=limits, outage=outage) as router:
            yield router
    else:
        from retcon.sandbox.pool import SandboxPool

        # sessions fork from one zygote with all packages
        warm = ["+".join(section.packages)] if section.packages and section.sessions else section.packages
        try:
            pool = SandboxPool(
                workers=section.workers,
                limits=limits,
                python=section.python or None,
                packages=section.packages,
                warm=warm,
                sessions=SessionBounds(SESSIONS),
            )
        except ValueError as error:
            raise RecipeError(f"[sandbox] {error}") from error
        async with pool:
            yield pool


@asynccontextmanager
async def open_context(recipe: Recipe, engine: Generator, chat: Chat) -> AsyncIterator[RolloutContext]:
    """Open the context of the recipe's rollouts: sandbox started, remote engine connected. It has the recipe's sampling
    and no repair; the caller closes the engine. Raises EngineError for an engine that is down, SandboxUnavailable,
    RecipeError for tools."""
    connected = engine.connected() if isinstance(engine, Connectable) else nullcontext()
    async with connected, open_connected(recipe, engine, chat) as context:
        yield context


@asynccontextmanager
async def open_connected(recipe: Recipe, engine: Generator, chat: Chat) -> AsyncIterator[RolloutContext]:
    """Open the context of the recipe's rollouts over a connected engine."""
    from retcon.rollout.context import RolloutContext

    async with open_sandbox(recipe.sandbox) as sandbox, _harness(recipe) as harness:
        tools = build_tools(recipe, sandbox)
        yield RolloutContext(
            engine,
            chat,
            tools,
            build_limits(recipe),
            build_sampling(recipe),
            harness=harness,
            subcalls=build_subcalls(recipe),
        )


@asynccontextmanager
async def _harness(recipe: Recipe) -> AsyncIterator[Harness | None]:
    """Open the harness that makes rollouts, None for Retcon's own loop. Raises RecipeError, MissingExtra."""
    section = recipe.rollout
    if not section.harness:
        yield None
        return
    try:
        from retcon.serve.harness_server import open_harness
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"rollout.harness needs {missing.name}: {how_to_install('serve')}") from missing
    from retcon.serve.harness import find_harness

    async with open_harness(find_harness(section.harness), section.harness_seconds) as harness:
        yield harness


def build_evaluation_context(recipe: Recipe, context: RolloutContext, sampling: SamplingParams) -> RolloutContext:
    """Return the context with the repair and the tool faults of [evaluate]."""
    tools = context.tools
    if recipe.evaluate.faults:
        from retcon.tools.faults import FaultSetup, FaultyTool

        setup = FaultSetup(recipe.evaluate.faults, recipe.evaluate.seed, recipe.sandbox.output_chars)
        tools = {name: FaultyTool(tool, setup) for name, tool in tools.items()}
    return replace(context, sampling=sampling, repair=build_evaluation_repair(recipe), probability=1.0, tools=tools)


def build_engine(
    recipe: Recipe,
    model: Callable[[], PreTrainedModel],
    chat: Chat,
    *,
    max_requests: int = MAX_REQUESTS,
    reserved: int = 0,
    folder: Path | None = None,
    trained: bool = False,
    least: int = 0,
    adapters: Adapters | None = None,
) -> Generator:
    """Build the recipe's engine. model: loads the weights for an engine in this process. least: tokens that a request
    may have in any case, though the recipe's own rollouts have fewer. Others: fields of `EngineSetup`. Raises
    EngineError, CheckpointError."""
    setup = EngineSetup(
        model=model,
        tokenizer=chat.tokenizer,
        max_len=max(least, recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens),
        max_requests=min(max_requests, MAX_REQUESTS),
        kv_memory_mb=recipe.compute.kv_memory_mb,
        reserved=reserved,
        folder=folder,
        dtype=recipe.compute.rollout_dtype,
        threads=recipe.run.threads,
        trained=trained,
        adapters=adapters,
    )
    engine: Generator = recipe.engine.build(setup)
    return engine


def build_training_engine(
    recipe: Recipe,
    model: PreTrainedModel,
    chat: Chat,
    *,
    max_requests: int,
    reserved: int = 0,
    folder: Path | None = None,
    least: int = 0,
    adapters: Adapters | None = None,
) -> TrainableEngine:
    """Build the recipe's engine over weights in training. Raises RecipeError for an engine that cannot update them."""
    engine = build_engine(
        recipe,
        lambda: model,
        chat,
        max_requests=max_requests,
        reserved=reserved,
        folder=folder,
        trained=True,
        least=least,
        adapters=adapters,
    )
    if not isinstance(engine, TrainableEngine):
        raise RecipeError(
            f"engine.kind = '{recipe.engine.kind}' cannot be trained with: it does not take weights, or reports no "
            "statistics (retcon.engine.types.TrainableEngine)"
        )
    return engine


def build_policy(recipe: Recipe, checkpoint: Path, chat: Chat, on_place: OnPlace | None = None) -> Generator:
    """Build an engine over a checkpoint's model. on_place: called with its device and dtypes, before it loads. Raises
    CheckpointError, MissingExtra without torch, RecipeError for settings that this machine cannot compute."""

    def model() -> PreTrainedModel:
        try:
            import torch

            from retcon.models.devices import set_threads
            from retcon.models.loading import load_config, load_model
            from retcon.models.placing import place_model
        except ImportError as error:
            raise MissingExtra(f"evaluating needs torch ({error.name}): {how_to_install('train')}") from error
        where = place_model(recipe, load_config(checkpoint), ("rollout_dtype",))
        if on_place is not None:
            on_place(where)
        loaded = load_model(checkpoint, where.rollout_dtype, attention=where.attention)
        loaded.to(torch.device(where.device))  # type: ignore[arg-type]  # nn.Module.to, wrapped by transformers
        set_threads(where.threads)
        return loaded

    return build_engine(recipe, model, chat, folder=checkpoint)
