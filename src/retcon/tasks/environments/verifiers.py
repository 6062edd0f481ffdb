"""Environments of `verifiers`: tasksets of 0.4 and later (`verifiers.v1`), and the classic API before it.

A taskset's model is played here, so it has no harness and no runtime: tasks that need one are refused. A classic
environment is served where its tools alone answer the model, and not `env_response`.
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

from retcon.core.concurrency import run_sync
from retcon.core.errors import InfrastructureFault, MissingExtra, RecipeError
from retcon.core.registry import import_local, import_object
from retcon.core.types import ToolSpec, Trajectory
from retcon.tasks.environments.types import (
    BegunRows,
    CallFailed,
    Rollback,
    ended_if_it_fails,
    failure,
    messages_of,
    shown,
    task_of,
)
from retcon.tasks.types import Split, Task

_state: ContextVar[Any] = ContextVar("state")
"""The state of the rollout whose call is being made: what `Toolset.state` gives here."""


class Served:
    """The tools of one rollout. own: toolsets of this rollout alone, as `served_here` made them; shared: those that all
    rollouts have."""

    def __init__(self, own: Sequence[Any], shared: Sequence[Any] = ()) -> None:
        self.own, self._shared = own, shared
        self._servers = [(toolset, _server(toolset)) for toolset in (*own, *shared)]
        self._tools: dict[str, tuple[Any, str]] = {}

    async def specs(self) -> list[ToolSpec]:
        """Named as verifiers' own agents name them, `SERVER_TOOL`, or `TOOL` where the toolset has no prefix. Raises
        RecipeError where two have one name."""
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
        """What a tool answers. state: the rollout's. faults: see `failure`. Raises CallFailed, InfrastructureFault."""
        from mcp.server.mcpserver.exceptions import ToolError

        if not self._tools:
            await self.specs()
        server, tool = self._tools[name]
        token = _state.set(state)
        try:
            answer = await server.call_tool(tool, dict(arguments))
        except ToolError as error:  # its text is what the model is told there, too
            raise failure(_cause(error), faults, str(error)) from error
        finally:
            _state.reset(token)
        told = shown([_part(block) for block in answer.content]) if answer.content else ""
        if answer.is_error:
            raise CallFailed(told)
        return told

    def copied(self) -> Served:
        """With all that its own toolsets keep; those that are shared stay as they are."""
        return Served([_copied(toolset) for toolset in self.own], self._shared)

    async def end(self) -> None:
        """Closes what its own toolsets have opened."""
        await end_toolsets(self.own)


async def end_toolsets(toolsets: Sequence[Any]) -> None:
    """Closes what they have opened, the rest too where closing one of them raises."""
    async with AsyncExitStack() as closing:
        for toolset in toolsets:
            closing.push_async_callback(toolset._exit_stack.aclose)  # as the server does in which verifiers runs it


def served_here(toolset: Any) -> Any:
    """The toolset, with the state of the rollout whose call it answers as its state.

    Raises RecipeError for one that runs in another place.
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
    """The same class, whose state is the rollout's and does not come over HTTP."""
    state = property(lambda self: _state.get(None) or self._inert_state)
    return type(kind.__name__, (kind,), {"state": state, "__module__": kind.__module__})


def _server(toolset: Any) -> Any:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


def _copied(toolset: Any) -> Any:
    """What every toolset has (its settings, adapters, what it closes) is shared; what this one added is copied."""
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
    """A block of MCP as a part of a message."""
    return {"type": block.type, "text": block.text} if block.type == "text" else {"type": block.type}


_IN_A_CONTAINER = ("image", "agent_user", "skills", "artifacts")
"""What a task says of the container that it is to be solved in."""
_PLACE = "idx"
"""Of a task's data: its place in the taskset."""
_STOPPED = {"answer": "agent_completed", "turns": "max_turns", "length": "max_total_tokens"}
"""Why a rollout ended, in the words of verifiers."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A rollout: its task, what is known of it so far (`verifiers.v1.Trace`), and its tools."""

    task: Any
    trace: Any
    served: Served


class TasksetEnvironment:
    """Implements `retcon.tasks.environments.types.Environment`.

    environment: an installed taskset's id (`owner/name`, `name`), or the import path of a Taskset, its class or a
    function that makes one; arguments: of its configuration, or of the function. faults: see `failure`.

    Tools run in this process. Their state (`vf.State`) and what a toolset keeps of its own are copied for a repair;
    what toolsets of the whole taskset keep is shared. Raises RecipeError.
    """

    def __init__(self, environment: str, arguments: Mapping[str, Any], faults: Collection[str]) -> None:
        import verifiers.v1

        self._vf = vf = verifiers.v1
        self._faults = faults
        self._taskset = _load_taskset(vf, environment, arguments)
        self.name = (environment.rpartition(":")[2] or environment).rsplit("/", 1)[-1].partition("@")[0]
        self._shared = [served_here(toolset) for toolset in type(self._taskset).toolsets(self._taskset.config)]
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
        begun = Begun(row, trace, self._served(row))
        try:
            async with ended_if_it_fails(begun.served.end):
                await self._set_up()
                for toolset in begun.served.own:
                    await toolset.setup()
                    await toolset.setup_task(row.data)
                await self._hook(row.setup, trace)
        except RecipeError:
            raise
        except Exception as error:
            raise InfrastructureFault(f"{self.name}: its setup raised {type(error).__name__}: {error}") from error
        return begun

    async def call(self, state: Begun, name: str, arguments: Mapping[str, Any]) -> str:
        return await state.served.call(state.trace.state, name, arguments, self._faults)

    def copied(self, state: Begun) -> Begun:
        kept = state.trace.model_copy(update={"state": state.trace.state.model_copy(deep=True)})
        return replace(state, trace=kept, served=state.served.copied())

    async def end(self, state: Begun) -> None:
        try:
            await state.served.end()
        except Exception as error:
            raise InfrastructureFault(f"{self.name}: its tools ended with {type(error).__name__}: {error}") from error

    async def reward(self, task: Task, trajectory: Trajectory, state: Begun) -> tuple[float, str | None]:
        trace = state.trace
        said = messages_of(trajectory)
        while said and said[-1]["role"] == "tool":  # a completion ends with what the model wrote
            said.pop()
        _fill_trace(self._vf, trace, _prompt(state.task.data), said)
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
            task = task_of(_prompt(row.data), set=self.name, number=number, answer=answer)
            found[task.id] = task, row
        if not found:
            raise RecipeError(f"task.environment: {self.name} has no tasks")
        return found

    def _tools(self) -> Sequence[ToolSpec]:
        """Those of every row. Raises RecipeError for a row that needs what is not here, and for one with other tools
        than the first."""
        kinds: dict[tuple[type, str], tuple[str, Any]] = {}
        for number, (_, row) in enumerate(self._rows.values()):
            where, kind = f"task.environment: row {number} of {self.name}", (type(row), repr(row.config))
            _refuse_contained(row, where)
            if kind not in kinds:
                self._refuse(row, where)
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
        return [await self._served(row).specs() for row in rows]

    def _refuse(self, row: Any, where: str) -> None:
        """Raises RecipeError for a kind of task that needs what is not here."""
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

    def _served(self, row: Any) -> Served:
        own = [served_here(toolset) for toolset in type(row).toolsets(row.config)]
        return Served(own, self._shared)

    async def _set_up(self) -> None:
        """The toolsets that all rollouts share, once; after a fault, again."""
        ready = self._ready
        if ready is None or (ready.done() and (ready.cancelled() or ready.exception())):
            ready = self._ready = asyncio.ensure_future(self._set_up_shared())
        await asyncio.shield(ready)  # a rollout that is cancelled does not take it along

    async def _set_up_shared(self) -> None:
        async with ended_if_it_fails(partial(end_toolsets, self._shared)):
            for toolset in self._shared:
                await toolset.setup()

    async def _hook(self, hook: Any, trace: Any) -> None:
        """Runs what a task does before or after the rollout."""
        given = {"trace": trace, "runtime": _NoRuntime(self.name)}
        await hook(**{name: given[name] for name in inspect.signature(hook).parameters})


class _NoRuntime:
    """What is handed to hooks as the agent's runtime."""

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


def _refuse_contained(row: Any, where: str) -> None:
    """Raises RecipeError for a task that is to be solved in a container."""
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
    """All that stands before the model's first word, as messages."""
    prompt = data.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [m.model_dump() for m in prompt]
    if data.system_prompt is not None and messages[:1] and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": data.system_prompt})
    return messages


def _fill_trace(vf: Any, trace: Any, prompt: Sequence[Mapping[str, Any]], said: Sequence[Mapping[str, Any]]) -> None:
    """A trace as verifiers' own rollout leaves it: its messages one after the other, without tokens."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "tool": vf.ToolMessage}
    for message in (*prompt, *said):
        if message["role"] == "assistant":
            calls = [vf.ToolCall(id=call["id"], **call["function"]) for call in message.get("tool_calls") or ()]
            told = vf.AssistantMessage(content=message["content"], tool_calls=calls or None)
        else:
            told = kinds[message["role"]](**message)
        before = len(trace.nodes)
        sampled = before >= len(prompt) and message["role"] == "assistant"
        trace.nodes.append(vf.MessageNode(parent=before - 1 if before else None, message=told, sampled=sampled))


def _needs_runtime(hook: Any) -> bool:
    given = inspect.signature(hook).parameters.get("runtime")
    return given is not None and given.default is inspect.Parameter.empty


# The classic API: `verifiers.load_environment`.

HAD = "SingleTurnEnv, ToolEnv, StatefulToolEnv and PythonEnv"
_NUMBER = "example_id"
"""The column in which verifiers numbers the rows."""
_UNCOPIED = frozenset({"client", "usage_tracker", "usage", "timing"})
"""Of a state, what no tool changes, and what cannot be copied."""
_raised: ContextVar[list[str]] = ContextVar("raised")
"""What reward functions have raised, of the rollout that is being graded: verifiers takes that for a reward of 0."""


class VerifiersEnvironment:
    """Implements `retcon.tasks.environments.types.Environment`.

    environment: an installed environment's id (`gsm8k-python`, `owner/name`), or the import path of a function that
    makes one, or of one; arguments: what that is called with. faults: see `failure`.

    Tools of a ToolEnv are functions of their arguments; those of a StatefulToolEnv get what `update_tool_args` adds
    from the state, which is copied with `copy.deepcopy`. No messages are handed to `update_tool_args`: tools know none
    here. A PythonEnv has no tools of its own here: its Python is Retcon's (`rollout.tools = ["python"]`). Raises
    RecipeError.
    """

    def __init__(self, environment: str, arguments: Mapping[str, Any], faults: Collection[str]) -> None:
        import verifiers
        import verifiers.types

        self._vf = verifiers
        self._env = env = _loaded(self._vf, environment, arguments)
        self._faults = faults
        self.name = str(env.env_id or environment).replace(":", ".").rsplit("/", 1)[-1]
        self._python = self._refuse_others()
        tools = [] if self._python else env.tool_defs or []
        self.specs: Sequence[ToolSpec] = [ToolSpec(t.name, t.description or "", dict(t.parameters)) for t in tools]
        stateful = isinstance(env, self._vf.StatefulToolEnv) or _overridden(env, "setup_state", self._vf.MultiTurnEnv)
        self.rollback: Rollback = "copy" if self.specs and stateful else "unneeded"
        self._begun = BegunRows(self.name, "environment")
        for rubric in _rubrics(env.rubric):
            weighed = zip(rubric.funcs, rubric.weights, strict=True)  # the others are figures, which may fail
            rubric.funcs[:] = [_watched(function) if weight else function for function, weight in weighed]

    def tasks(self, split: Split) -> Sequence[Task]:
        env = self._env
        if split == "evaluation" and env.eval_dataset is None and env.eval_dataset_source is None:
            return []
        if split == "train" and env.dataset is None and env.dataset_source is None:
            return []
        data = env.get_dataset() if split == "train" else env.get_eval_dataset()
        found = []
        for number, row in enumerate(data):
            task = task_of(row["prompt"], set=f"{self.name}/{split}", number=number, answer=row.get("answer"))
            self._begun.keep(task.id, row)
            found.append(task)
        return found

    def row(self, task: str) -> Mapping[str, Any]:
        return {name: value for name, value in self._begun.row(task).items() if name != _NUMBER}

    async def begin(self, task: str) -> Any:
        row = self._begun.row(task)
        try:
            state = await self._env.init_state(row, self._vf.types.ClientConfig(), "retcon")
            if self._python:
                return state
            async with ended_if_it_fails(partial(self.end, state)):
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
            told = await self._env.call_tool(name, given, name)
        except Exception as error:
            ends = isinstance(error, (self._vf.Error, *self._env.stop_errors))  # the rollout, there as here
            faults = [type(error).__name__] if ends else self._faults
            raise failure(error, faults, str(self._env.error_formatter(error))) from error
        return shown(told.content)

    def copied(self, state: Any) -> Any:
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
        vf, told = self._vf, [_message(self._vf, message) for message in messages_of(trajectory)]
        while told and told[-1].role == "tool":  # a completion ends with what the model wrote
            told.pop()
        _fill(state, told, truncated=trajectory.stop != "answer")
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
        answer = self._env.parser.parse_answer(told) if told else None
        return float(state["reward"]), None if answer is None else str(answer)

    def _refuse_others(self) -> bool:
        """Whether it is a PythonEnv. Raises RecipeError for environments that cannot be had."""
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


def classic() -> bool:
    """Whether the `verifiers` that is installed has environments of this kind. Raises MissingExtra."""
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


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same reward function, that tells what it raises."""

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


def _fill(state: Any, told: Sequence[Any], *, truncated: bool) -> None:
    """A state as verifiers' own rollout leaves it: a step for each message of the model, and the completion."""
    steps: list[dict[str, Any]] = []
    for n, message in enumerate(told):
        if message.role == "assistant":
            about = {"response": None, "tokens": None, "reward": None, "advantage": None, "is_truncated": False}
            prompt = [*state["prompt"], *told[:n]]
            steps.append({"prompt": prompt, "completion": [message], **about, "extras": {},
                          "trajectory_id": state["trajectory_id"]})  # fmt: skip
    state["trajectory"], state["completion"] = steps, list(told)
    state["is_completed"], state["is_truncated"] = True, truncated
    state["stop_condition"] = "no_tools_called" if not truncated else "max_turns_reached"
