"""Environments of `verifiers` (its classic API: `verifiers.load_environment`, in releases below 0.4;
`tasksets` has those of later ones).

Which of them can be had is told by who answers the model: its tools alone, or `env_response`, which here nobody calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from functools import partial, wraps
from typing import Any

from retcon.core.errors import InfrastructureFault, MissingExtra, RecipeError
from retcon.core.registry import at_path, imported
from retcon.core.types import ToolSpec, Trajectory
from retcon.tasks.environments.types import BegunRows, Rollback, ended_if_it_fails, failure, messages_of, shown, task_of
from retcon.tasks.types import Split, Task

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
            found = at_path(environment)
            env = found(**arguments) if callable(found) else found
        else:
            imported(environment.replace("-", "_").split("/")[-1])  # also one in the folder that we were called in
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
