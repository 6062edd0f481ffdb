"""Environments of `verifiers`: tasksets (`verifiers.v1`, 0.4) and the classic API.

A taskset's agent is Retcon's own loop, without harness and runtime: tasks that need one are refused. A classic
environment is supported where its tools alone answer the model, and not `env_response`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import Any

from pydantic import Field

from retcon.core.concurrency import run_sync
from retcon.core.errors import InfrastructureFault, MissingExtra, RecipeError
from retcon.core.registry import import_local, import_object
from retcon.core.types import ToolSpec, Trajectory
from retcon.tasks.environments.tasks import EnvironmentSection
from retcon.tasks.environments.types import (
    CallFailed,
    Environment,
    Rollback,
    TaskRows,
    build_task,
    classify_error,
    cleanup_on_error,
    completion_messages,
    render_output,
)
from retcon.tasks.types import Split, Task

_state: ContextVar[Any] = ContextVar("state")
"""The state of the rollout whose call is running, which `Toolset.state` returns here."""


class ToolServers:
    """The tools of one rollout. own: its own toolsets, from `serve_locally`; shared: those of all rollouts."""

    def __init__(self, own: Sequence[Any], shared: Sequence[Any] = ()) -> None:
        self.own, self._shared = own, shared
        self._servers = [(toolset, _server(toolset)) for toolset in (*own, *shared)]
        self._tools: dict[str, tuple[Any, str]] = {}

    async def specs(self) -> list[ToolSpec]:
        """Return the specs by verifiers' names: `SERVER_TOOL`, or `TOOL` without a prefix. Raises RecipeError where two
        have the same name."""
        found: list[ToolSpec] = []
        self._tools.clear()
        for toolset, server in self._servers:
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in await server.list_tools():
                name = prefix + tool.name
                if name in self._tools:
                    raise RecipeError(f"task.environment: two tools are called '{name}'")
                self._tools[name] = server, tool.name
                found.append(ToolSpec(name, tool.description or "", dict(tool.input_schema)))
        return found

    async def call(self, state: Any, name: str, arguments: Mapping[str, Any], faults: Collection[str]) -> str:
        """Call a tool and return its answer. state: the rollout's. faults: those of `classify_error`. Raises
        CallFailed, InfrastructureFault."""
        from mcp.server.mcpserver.exceptions import ToolError

        if not self._tools:
            await self.specs()
        server, tool = self._tools[name]
        token = _state.set(state)
        try:
            answer = await server.call_tool(tool, dict(arguments))
        except ToolError as error:  # its text is the model's observation in verifiers, too
            raise classify_error(_cause(error), faults, str(error)) from error
        finally:
            _state.reset(token)
        text = render_output([_part(block) for block in answer.content]) if answer.content else ""
        if answer.is_error:
            raise CallFailed(text)
        return text

    def copy(self) -> ToolServers:
        """Copy its own toolsets with their state; shared ones stay shared."""
        return ToolServers([_copy_toolset(toolset) for toolset in self.own], self._shared)

    async def end(self) -> None:
        """Close its own toolsets."""
        await end_toolsets(self.own)


async def end_toolsets(toolsets: Sequence[Any]) -> None:
    """Close all toolsets, even where closing one of them raises."""
    async with AsyncExitStack() as closing:
        for toolset in toolsets:
            closing.push_async_callback(toolset._exit_stack.aclose)  # like the server in which verifiers runs it


def serve_locally(toolset: Any) -> Any:
    """Give a toolset the state of the calling rollout as its state.

    Raises RecipeError for one that runs elsewhere.
    """
    name = type(toolset).__name__
    if url := getattr(toolset.config, "url", None):
        raise RecipeError(f"task.environment: the tools of {name} are served at {url}, where nothing can be taken back")
    if getattr(toolset.config, "colocated", False):
        raise RecipeError(f"task.environment: the tools of {name} run in the agent's runtime, and here it has none")
    kind: Any = type(toolset)
    toolset.__class__ = _here(kind)
    return toolset


@cache
def _here(kind: type) -> type:
    """Return a subclass whose state is the rollout's and does not come over HTTP."""
    state = property(lambda self: _state.get(None) or self._inert_state)
    return type(kind.__name__, (kind,), {"state": state, "__module__": kind.__module__})


def _server(toolset: Any) -> Any:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


def _copy_toolset(toolset: Any) -> Any:
    """Copy a toolset's own attributes; those of every toolset (settings, adapters, exit stack) are shared."""
    import verifiers.v1 as vf

    every = vars(vf.Toolset(vf.ToolsetConfig()))
    copy = object.__new__(type(toolset))
    memo = {id(toolset): copy}
    for name, value in vars(toolset).items():
        vars(copy)[name] = value if name in every else deepcopy(value, memo)
    return copy


def _cause(error: Exception) -> Exception:
    return error.__cause__ if isinstance(error.__cause__, Exception) else error


def _part(block: Any) -> dict[str, Any]:
    """Return an MCP block as a part of a message."""
    return {"type": block.type, "text": block.text} if block.type == "text" else {"type": block.type}


_IN_A_CONTAINER = ("image", "agent_user", "skills", "artifacts")
"""Fields of a task that concern its container."""
_PLACE = "idx"
"""Field of a task's data with its place in the taskset."""
_STOPPED = {"answer": "agent_completed", "turns": "max_turns", "length": "max_total_tokens"}
"""Stop reasons in the words of verifiers."""


@dataclass(frozen=True, slots=True)
class TasksetRollout:
    """State of a rollout: its task, trace (`verifiers.v1.Trace`) and tools."""

    task: Any
    trace: Any
    tools: ToolServers


class TasksetEnvironment:
    """An `Environment` (`retcon.tasks.environments.types`) of a verifiers taskset.

    environment: an installed taskset's id (`owner/name`, `name`), or the import path of a Taskset, its class or a
    function that makes one; arguments: of its configuration, or of the function. faults: those of `classify_error`.

    Tools run in this process. Their state (`vf.State`) and a toolset's own attributes are copied for a repair; toolsets
    of the whole taskset are shared. Raises RecipeError.
    """

    def __init__(self, environment: str, arguments: Mapping[str, Any], faults: Collection[str]) -> None:
        import verifiers.v1

        self._vf = vf = verifiers.v1
        self._faults = faults
        self._taskset = _load_taskset(vf, environment, arguments)
        self.name = (environment.rpartition(":")[2] or environment).rsplit("/", 1)[-1].partition("@")[0]
        self._shared = [serve_locally(toolset) for toolset in type(self._taskset).toolsets(self._taskset.config)]
        self._ready: asyncio.Task[None] | None = None
        self._rows = self._read()
        self.specs = self._tools()
        self.rollback: Rollback = "copy" if self.specs else "unneeded"

    def tasks(self, split: Split) -> Sequence[Task]:
        return [] if split == "evaluation" else [task for task, _ in self._rows.values()]

    def row(self, task: str) -> Mapping[str, Any]:
        data: Mapping[str, Any] = self._row(task).data.model_dump(exclude={_PLACE})
        return data

    async def begin(self, task: str) -> Any:
        row, vf = self._row(task), self._vf
        about = vf.TraceTask(type=type(row).__name__, data=row.data, key=row.key, hash=row.hash)
        state = vf.state.state_cls(type(row))()
        trace = vf.Trace(task=about, state=state, agent=vf.AgentInfo(config=vf.AgentConfig()))
        rollout = TasksetRollout(row, trace, self._serve(row))
        try:
            async with cleanup_on_error(rollout.tools.end):
                await self._set_up()
                for toolset in rollout.tools.own:
                    await toolset.setup()
                    await toolset.setup_task(row.data)
                await self._hook(row.setup, trace)
        except RecipeError:
            raise
        except Exception as error:
            raise InfrastructureFault(f"{self.name}: its setup raised {type(error).__name__}: {error}") from error
        return rollout

    async def call(self, state: TasksetRollout, name: str, arguments: Mapping[str, Any]) -> str:
        return await state.tools.call(state.trace.state, name, arguments, self._faults)

    def copy_state(self, state: TasksetRollout) -> TasksetRollout:
        kept = state.trace.model_copy(update={"state": state.trace.state.model_copy(deep=True)})
        return replace(state, trace=kept, tools=state.tools.copy())

    async def end(self, state: TasksetRollout) -> None:
        try:
            await state.tools.end()
        except Exception as error:
            raise InfrastructureFault(f"{self.name}: its tools ended with {type(error).__name__}: {error}") from error

    async def reward(self, task: Task, trajectory: Trajectory, state: TasksetRollout) -> tuple[float, str | None]:
        trace = state.trace
        messages = completion_messages(trajectory)
        while messages and messages[-1]["role"] == "tool":  # a completion ends with a message of the model
            messages.pop()
        _fill_trace(self._vf, trace, _prompt(state.task.data), messages)
        trace.ok = True
        trace.stop(_STOPPED[trajectory.stop])
        try:
            await self._hook(state.task.finalize, trace)
            await state.task.score(trace)
        except RecipeError:
            raise
        except Exception as error:
            raise InfrastructureFault(f"{self.name}: its rewards cannot grade {task.id}: {error}") from error
        return float(trace.reward), trace.last_reply if trajectory.stop == "answer" else None

    def _row(self, task: str) -> Any:
        if task not in self._rows:
            raise RecipeError(f"{self.name} has no task {task!r}, and its tools begin with one of its own")
        return self._rows[task][1]

    def _read(self) -> dict[str, tuple[Task, Any]]:
        if not self._taskset.bounded:
            raise RecipeError(
                f"task.environment: the tasks of {self.name} never end: name a function that returns so many of them, "
                "`return MyTaskset(config).take(1000)`"
            )
        found: dict[str, tuple[Task, Any]] = {}
        for number, row in enumerate(self._taskset):
            if row.data.prompt is None:
                raise RecipeError(f"row {number} of {self.name} has no prompt: in it a simulated user speaks first")
            answer = getattr(row.data, "answer", None)
            task = build_task(_prompt(row.data), set=self.name, number=number, answer=answer)
            found[task.id] = task, row
        if not found:
            raise RecipeError(f"task.environment: {self.name} has no tasks")
        return found

    def _tools(self) -> Sequence[ToolSpec]:
        """Return the tools, equal for all rows. Raises RecipeError for a row with unsupported needs, and for one with
        other tools than the first."""
        kinds: dict[tuple[type, str], tuple[str, Any]] = {}
        for number, (_, row) in enumerate(self._rows.values()):
            where, kind = f"task.environment: row {number} of {self.name}", (type(row), repr(row.config))
            _check_container(row, where)
            if kind not in kinds:
                self._check_kind(row, where)
                kinds[kind] = where, row
        firsts = list(kinds.values())
        found, *others = run_sync(self._specs([row for _, row in firsts]))
        for (where, row), own in zip(firsts[1:], others, strict=True):
            if _by_name(own) != _by_name(found):
                raise RecipeError(
                    f"{where}: a {type(row).__name__} has {_listed(own)}, and row 0, a {type(firsts[0][1]).__name__}, "
                    f"has {_listed(found)}; all must have the same tools, described alike: leave out those of one kind "
                    "(`Taskset.exclude`)"
                )
        return found

    async def _specs(self, rows: Iterable[Any]) -> list[Sequence[ToolSpec]]:
        return [await self._serve(row).specs() for row in rows]

    def _check_kind(self, row: Any, where: str) -> None:
        """Raise RecipeError for a kind of task with unsupported needs."""
        kind = type(row).__name__
        needing = [hook.__name__ for hook in row.hooks("reward") if _needs_runtime(hook)]
        needing += [judge.reward_name for judge in row.plugged_judges() if _needs_runtime(judge.score)]
        if needing:
            raise RecipeError(
                f"{where}: of {kind}, {', '.join(needing)} rewards what the agent left in its runtime, and here it has "
                "none"
            )
        if self._vf.utils.decorators.discover_decorated(row, "intercept"):
            raise RecipeError(f"{where}: {kind} rewrites what the model is shown (`@vf.intercept`)")

    def _serve(self, row: Any) -> ToolServers:
        own = [serve_locally(toolset) for toolset in type(row).toolsets(row.config)]
        return ToolServers(own, self._shared)

    async def _set_up(self) -> None:
        """Set up the toolsets that all rollouts share, once; after a fault, again."""
        ready = self._ready
        if ready is None or (ready.done() and (ready.cancelled() or ready.exception())):
            ready = self._ready = asyncio.ensure_future(self._set_up_shared())
        await asyncio.shield(ready)  # a rollout that is cancelled does not take it along

    async def _set_up_shared(self) -> None:
        async with cleanup_on_error(partial(end_toolsets, self._shared)):
            for toolset in self._shared:
                await toolset.setup()

    async def _hook(self, hook: Any, trace: Any) -> None:
        """Run a task's hook before or after the rollout."""
        given = {"trace": trace, "runtime": _NoRuntime(self.name)}
        await hook(**{name: given[name] for name in inspect.signature(hook).parameters})


class _NoRuntime:
    """Placeholder of the agent's runtime for hooks; any use raises."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, what: str) -> Any:
        raise RecipeError(
            f"task.environment: the tasks of {self._name} use the agent's runtime (`runtime.{what}`), and here it "
            "has none"
        )


def _load_taskset(vf: Any, environment: str, arguments: Mapping[str, Any]) -> Any:
    try:
        if ":" in environment:
            taskset = _made(vf, import_object(environment), arguments)
        else:
            name = environment.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()
            try:
                import_local(name)  # also one in the folder that we were called in
            except ModuleNotFoundError as missing:
                if missing.name != name:
                    raise
            if vf.environment_class(environment) is not vf.SingleAgentEnv:
                raise RecipeError(
                    f"task.environment: '{environment}' exports an Env, which plays several agents with each other, or "
                    "one in its own way; tasks alone can be had"
                )
            kind = vf.taskset_config_type(environment)
            taskset = vf.load_taskset(kind.model_validate({**arguments, "id": environment}))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise RecipeError(f"task.environment: '{environment}' cannot be loaded: {error}") from error
    if not isinstance(taskset, vf.Taskset):
        raise RecipeError(f"task.environment: '{environment}' is a {type(taskset).__name__}, and no verifiers Taskset")
    return taskset


def _made(vf: Any, found: Any, arguments: Mapping[str, Any]) -> Any:
    if isinstance(found, type) and issubclass(found, vf.Taskset):
        kind = vf.utils.generic.concrete_type(found, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
        return found(kind.model_validate(arguments))
    return found(**arguments) if callable(found) else found


def _check_container(row: Any, where: str) -> None:
    """Raise RecipeError for a task that needs a container."""
    wanted = [name for name in _IN_A_CONTAINER if getattr(row.data, name)]
    if row.NEEDS_CONTAINER or wanted:
        raise RecipeError(
            f"{where}: a {type(row).__name__} is solved in a container ({', '.join(wanted) or 'NEEDS_CONTAINER'}), and "
            "Retcon runs none for it"
        )


def _by_name(specs: Sequence[ToolSpec]) -> dict[str, ToolSpec]:
    return {spec.name: spec for spec in specs}


def _listed(specs: Sequence[ToolSpec]) -> str:
    return ", ".join(spec.name for spec in specs) or "no tools"


def _prompt(data: Any) -> list[dict[str, Any]]:
    """Return the prompt as messages."""
    prompt = data.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [m.model_dump() for m in prompt]
    if data.system_prompt is not None and messages[:1] and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": data.system_prompt})
    return messages


def _fill_trace(vf: Any, trace: Any, prompt: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> None:
    """Fill a trace like verifiers' own rollout: one node per message, without tokens. after: the completion."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "tool": vf.ToolMessage}
    for message in (*prompt, *after):
        if message["role"] == "assistant":
            calls = [vf.ToolCall(id=call["id"], **call["function"]) for call in message.get("tool_calls") or ()]
            node = vf.AssistantMessage(content=message["content"], tool_calls=calls or None)
        else:
            node = kinds[message["role"]](**message)
        before = len(trace.nodes)
        sampled = before >= len(prompt) and message["role"] == "assistant"
        trace.nodes.append(vf.MessageNode(parent=before - 1 if before else None, message=node, sampled=sampled))


def _needs_runtime(hook: Any) -> bool:
    given = inspect.signature(hook).parameters.get("runtime")
    return given is not None and given.default is inspect.Parameter.empty


# The classic API: `verifiers.load_environment`.

HAD = "SingleTurnEnv, ToolEnv, StatefulToolEnv and PythonEnv"
_NUMBER = "example_id"
"""The column in which verifiers numbers the rows."""
_UNCOPIED = frozenset({"client", "usage_tracker", "usage", "timing"})
"""Keys of a state that tools do not change or that cannot be copied."""
_raised: ContextVar[list[str]] = ContextVar("raised")
"""Errors of reward functions for the rollout in grading; verifiers would turn them into a reward of 0."""


class VerifiersEnvironment:
    """An `Environment` (`retcon.tasks.environments.types`) of verifiers' classic API.

    environment: an installed environment's id (`gsm8k-python`, `owner/name`), or the import path of an environment or
    of a function that makes one; arguments: of that function. faults: those of `classify_error`.

    Tools of a ToolEnv are functions of their arguments; those of a StatefulToolEnv also get arguments that
    `update_tool_args` adds from the state, which is copied with `copy.deepcopy`. `update_tool_args` gets no messages:
    tools here do not have them. A PythonEnv has no tools of its own here: its Python is Retcon's
    (`rollout.tools = ["python"]`). Raises RecipeError.
    """

    def __init__(self, environment: str, arguments: Mapping[str, Any], faults: Collection[str]) -> None:
        import verifiers
        import verifiers.types

        self._vf = verifiers
        self._env = env = _loaded(self._vf, environment, arguments)
        self._faults = faults
        self.name = str(env.env_id or environment).replace(":", ".").rsplit("/", 1)[-1]
        self._python = self._check_supported()
        tools = [] if self._python else env.tool_defs or []
        self.specs: Sequence[ToolSpec] = [ToolSpec(t.name, t.description or "", dict(t.parameters)) for t in tools]
        stateful = isinstance(env, self._vf.StatefulToolEnv) or _overridden(env, "setup_state", self._vf.MultiTurnEnv)
        self.rollback: Rollback = "copy" if self.specs and stateful else "unneeded"
        self._task_rows = TaskRows(self.name, "environment")
        for rubric in _rubrics(env.rubric):
            weighed = zip(rubric.funcs, rubric.weights, strict=True)  # the others are metrics, which may fail
            rubric.funcs[:] = [_record_errors(function) if weight else function for function, weight in weighed]

    def tasks(self, split: Split) -> Sequence[Task]:
        env = self._env
        if split == "evaluation" and env.eval_dataset is None and env.eval_dataset_source is None:
            return []
        if split == "train" and env.dataset is None and env.dataset_source is None:
            return []
        data = env.get_dataset() if split == "train" else env.get_eval_dataset()
        found = []
        for number, row in enumerate(data):
            task = build_task(row["prompt"], set=f"{self.name}/{split}", number=number, answer=row.get("answer"))
            self._task_rows.keep(task.id, row)
            found.append(task)
        return found

    def row(self, task: str) -> Mapping[str, Any]:
        return {name: value for name, value in self._task_rows.row(task).items() if name != _NUMBER}

    async def begin(self, task: str) -> Any:
        row = self._task_rows.row(task)
        try:
            state = await self._env.init_state(row, self._vf.types.ClientConfig(), "retcon")
            if self._python:
                return state
            async with cleanup_on_error(partial(self.end, state)):
                return await self._env.setup_state(state) or state
        except Exception as error:
            raise InfrastructureFault(f"{self.name}: its setup raised {type(error).__name__}: {error}") from error

    async def call(self, state: Any, name: str, arguments: Mapping[str, Any]) -> str:
        given = dict(arguments)
        if isinstance(self._env, self._vf.StatefulToolEnv):
            try:
                given = self._env.update_tool_args(name, given, [], state)
            except Exception as error:
                raise InfrastructureFault(f"{self.name}: update_tool_args: {type(error).__name__}: {error}") from error
        try:
            message = await self._env.call_tool(name, given, name)
        except Exception as error:
            ends = isinstance(error, (self._vf.Error, *self._env.stop_errors))  # the rollout, as in verifiers
            faults = [type(error).__name__] if ends else self._faults
            raise classify_error(error, faults, str(self._env.error_formatter(error))) from error
        return render_output(message.content)

    def copy_state(self, state: Any) -> Any:
        memo: dict[int, Any] = {}
        copy = type(state)()
        for key, value in dict.items(state):
            dict.__setitem__(copy, key, value if key in _UNCOPIED else deepcopy(value, memo))
        return copy

    async def end(self, state: Any) -> None:
        if self._python:  # its setup was left out, too
            return
        try:
            await self._env.cleanup(state)
        except Exception as error:
            raise InfrastructureFault(f"{self.name}: its cleanup raised {type(error).__name__}: {error}") from error

    async def reward(self, task: Task, trajectory: Trajectory, state: Any) -> tuple[float, str | None]:
        vf, messages = self._vf, [_message(self._vf, message) for message in completion_messages(trajectory)]
        while messages and messages[-1].role == "tool":  # a completion ends with a message of the model
            messages.pop()
        _fill(state, messages, truncated=trajectory.stop != "answer")
        raised: list[str] = []
        token = _raised.set(raised)
        try:
            await self._env.rubric.score_rollout(state)
        except (vf.Error, OSError, AssertionError) as error:
            raised.append(f"{type(error).__name__}: {error}")
        finally:
            _raised.reset(token)
        if raised:
            raise InfrastructureFault(f"{self.name}: its rubric cannot grade {task.id}: {raised[0]}")
        answer = self._env.parser.parse_answer(messages) if messages else None
        return float(state["reward"]), None if answer is None else str(answer)

    def _check_supported(self) -> bool:
        """Return whether it is a PythonEnv. Raises RecipeError for unsupported environments."""
        env, vf = self._env, self._vf
        kind = type(env).__name__
        if isinstance(env, vf.EnvGroup):
            raise RecipeError(f"task.environment: {kind} holds several environments: name one of them at a time")
        python = isinstance(env, vf.PythonEnv)
        if not python and isinstance(env, vf.SandboxEnv):
            raise RecipeError(f"task.environment: {kind} runs its tools in a sandbox of verifiers; there are: {HAD}")
        answers = (vf.SingleTurnEnv, vf.StatefulToolEnv, vf.ToolEnv)
        own = next((one for one in answers if isinstance(env, one)), None)
        if own is None or _overridden(env, "env_response", own):
            raise RecipeError(
                f"task.environment: {kind} answers the model itself (`env_response`); where tools alone answer it, it "
                f"can be had: {HAD}"
            )
        if any(rubric.has_group_rewards for rubric in _rubrics(env.rubric)):
            raise RecipeError(f"task.environment: the rubric of {kind} compares the rollouts of a group with each "
                              "other; rewards must be of one rollout")  # fmt: skip
        return python


def has_classic_api() -> bool:
    """Return whether the installed `verifiers` has the classic API. Raises MissingExtra."""
    try:
        import verifiers
    except ModuleNotFoundError as missing:
        raise MissingExtra(f"task.kind = 'verifiers' needs {missing.name}: pip install verifiers") from missing
    return hasattr(verifiers, "load_environment")


def _loaded(vf: Any, environment: str, arguments: Mapping[str, Any]) -> Any:
    try:
        if ":" in environment:
            found = import_object(environment)
            env = found(**arguments) if callable(found) else found
        else:
            import_local(environment.replace("-", "_").split("/")[-1])  # also one in the folder that we were called in
            env = vf.load_environment(environment, **arguments)
    except (ImportError, TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(f"task.environment: '{environment}' cannot be loaded: {error}") from error
    if not isinstance(env, vf.Environment):
        raise RecipeError(f"task.environment: '{environment}' is a {type(env).__name__}, and no verifiers Environment")
    return env


def _overridden(env: Any, name: str, base: type) -> bool:
    return getattr(type(env), name) is not getattr(base, name)


def _rubrics(rubric: Any) -> list[Any]:
    inner = getattr(rubric, "rubrics", None)
    return [rubric] if inner is None else [one for part in inner for one in _rubrics(part)]


def _record_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function to record its errors in `_raised`."""

    @wraps(function)
    async def watched(*given: Any, **named: Any) -> Any:
        try:
            made = function(*given, **named)
            return await made if inspect.isawaitable(made) else made
        except Exception as error:
            if (raised := _raised.get(None)) is not None:
                raised.append(f"{getattr(function, '__name__', function)}: {type(error).__name__}: {error}")
            raise

    return watched


def _message(vf: Any, message: Mapping[str, Any]) -> Any:
    if message["role"] == "tool":
        return vf.types.ToolMessage(tool_call_id=message["tool_call_id"], content=message["content"])
    calls = [
        vf.types.ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    return vf.types.AssistantMessage(content=message["content"], tool_calls=calls or None)


def _fill(state: Any, messages: Sequence[Any], *, truncated: bool) -> None:
    """Fill a state like verifiers' own rollout: a step for each message of the model, and the completion."""
    steps: list[dict[str, Any]] = []
    for n, message in enumerate(messages):
        if message.role == "assistant":
            about = {"response": None, "tokens": None, "reward": None, "advantage": None, "is_truncated": False}
            prompt = [*state["prompt"], *messages[:n]]
            steps.append({"prompt": prompt, "completion": [message], **about, "extras": {},
                          "trajectory_id": state["trajectory_id"]})  # fmt: skip
    state["trajectory"], state["completion"] = steps, list(messages)
    state["is_completed"], state["is_truncated"] = True, truncated
    state["stop_condition"] = "no_tools_called" if not truncated else "max_turns_reached"


class Verifiers(EnvironmentSection):
    """Section [task] of kind `verifiers`."""

    environment: str = Field("", description="an installed environment's or taskset's id, or the import path of what "
                             "makes one")  # fmt: skip
    arguments: dict[str, Any] = Field({}, description="what it is loaded with: arguments, or keys of a taskset's "
                                      "configuration")  # fmt: skip

    def adapter(self) -> Environment:
        adapter = VerifiersEnvironment if has_classic_api() else TasksetEnvironment
        return adapter(self.environment, self.arguments, self.faults)
