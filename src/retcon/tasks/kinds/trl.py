"""Environments of TRL's `environment_factory`: `reset`, tool methods, `get_reward`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from retcon.chat.jsons import read_arguments
from retcon.config.section import NonNegative, StrList
from retcon.core.errors import InfrastructureFault, MissingExtra, RecipeError, format_user_error, reraise_as
from retcon.core.installing import how_to_install
from retcon.core.registry import import_object
from retcon.core.types import ToolSpec, Trajectory, ids_of
from retcon.tasks.environments.tasks import EnvironmentSection
from retcon.tasks.environments.types import (
    CallFailed,
    Environment,
    Rollback,
    TaskRows,
    build_task,
    classify_error,
    completion_messages,
    load_rows,
    render_output,
)
from retcon.tasks.types import Split, Task

NO_TOOLS = ("reset", "get_reward")
NOT_COLUMNS = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass to reward functions under their own names."""


@dataclass(frozen=True, slots=True)
class Factory:
    """An environment factory with its arguments and rewards. path: its import path. rewards: import paths of reward
    functions. faults: those of `classify_error`."""

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    rewards: Sequence[str] = ()
    faults: Collection[str] = ()


class MethodEnvironment:
    """An `Environment` (`retcon.tasks.environments.types`) whose states are instances.

    rows: the arguments of `reset`, which is called once for the task and once for every rollout; the column `prompt` is
    the prompt, to which the text of `reset` is added. It must return the same text each time.

    Like TRL: all public methods except `reset` and `get_reward` are tools, with transformers' schemas of their
    docstrings; a tool that raises has failed, and the model reads `{'error': …}`. So has one that returns that. The
    reward is the sum of `get_reward` and the reward functions. A state is copied with `copy.deepcopy`; where that fails
    for a fresh one, it cannot be restored. Raises RecipeError, MissingExtra without transformers.
    """

    def __init__(self, factory: Factory, rows: Sequence[Mapping[str, Any]]) -> None:
        self._about = factory
        self._factory = _imported(factory.path, "environment")
        self._rewards = [_imported(path, "reward_functions") for path in factory.rewards]
        self.name = factory.path.rpartition(":")[2]
        with _before_work(factory.path):
            probe = self._made()
        kind = type(probe)
        if not callable(getattr(probe, "reset", None)):
            raise RecipeError(f"task.environment: {kind.__name__} has no `reset`")
        if not self._rewards and not hasattr(kind, "get_reward"):
            raise RecipeError(
                f"task.reward_functions: {kind.__name__} has no `get_reward`: name a reward function at least"
            )
        names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction)]
        tools = [name for name in names if not name.startswith("_") and name not in NO_TOOLS]
        with _before_work(factory.path):  # the names of its type hints may not be there
            self.specs: Sequence[ToolSpec] = [_spec(getattr(probe, name)) for name in tools]
        self._rows = rows
        self._task_rows = TaskRows(self.name, "environment")
        self.rollback: Rollback = "unneeded"
        if self.specs:
            self.rollback = "copy" if _copies(self._first(rows[0])[0]) else "impossible"

    def tasks(self, split: Split) -> Sequence[Task]:
        if split == "evaluation":
            return []
        found = []
        for number, row in enumerate(self._rows):
            opening = self._first(row)[1]
            prompt, answer = row.get("prompt", ""), row.get("answer", row.get("solution"))
            task = build_task(prompt, set=self.name, number=number, answer=answer, after=opening)
            self._task_rows.keep(task.id, row, opening)
            found.append(task)
        return found

    def row(self, task: str) -> Mapping[str, Any]:
        return self._task_rows.row(task)

    async def begin(self, task: str) -> Any:
        row = self._task_rows.row(task)
        with reraise_as(InfrastructureFault, f"{self.name}: its reset"):
            state, opening = self._reset(row)
        self._task_rows.check(task, opening)
        return state

    async def call(self, state: Any, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            output = getattr(state, name)(**arguments)
            output = await output if inspect.isawaitable(output) else output
        except (Exception, SystemExit) as error:  # SystemExit, too, is a failed call
            raise classify_error(error, self._about.faults, str({"error": str(error)})) from error
        if isinstance(output, Mapping) and list(output) == ["error"]:
            raise CallFailed(str(output))
        return render_output(output)

    def copy_state(self, state: Any) -> Any:
        return deepcopy(state)

    async def end(self, state: Any) -> None:
        """Do nothing: TRL's environments have no way to close."""

    async def reward(self, task: Task, trajectory: Trajectory, state: Any) -> tuple[float, str | None]:
        row, messages = self._task_rows.row(task.id), _trl_messages(completion_messages(trajectory))
        given = {name: [value] for name, value in row.items() if name not in NOT_COLUMNS}
        given |= {"prompts": [_prompt(task)], "completions": [messages], "environments": [state]}
        given |= {"completion_ids": [list(ids_of(s for turn in trajectory.turns for s in turn.segments))]}
        rewards: list[float | None] = []
        try:
            if hasattr(type(state), "get_reward"):
                rewards.append(await _one(state.get_reward()))
            for reward in self._rewards:
                rewards.append(await _one(reward(**given, log_extra=_unlogged, log_metric=_unlogged)))
        except (Exception, SystemExit) as error:
            raise InfrastructureFault(f"{self.name}: its reward raised {format_user_error(error)}") from error
        if not (judged := [value for value in rewards if value is not None]):
            raise InfrastructureFault(f"{self.name}: the rollout has no reward: all reward functions returned None")
        return sum(judged), messages[-1]["content"] if messages and trajectory.stop == "answer" else None

    def _made(self) -> Any:
        try:
            return self._factory(**self._about.arguments)
        except TypeError as error:
            raise RecipeError(f"task.environment: '{self._about.path}' cannot be called: {error}") from error

    def _first(self, row: Mapping[str, Any]) -> tuple[Any, str]:
        """Reset with a row before any rollout; what it raises becomes a RecipeError."""
        with _before_work(f"{self.name}, reset with {dict(row)!r:.200},"):
            return self._reset(row)

    def _reset(self, row: Mapping[str, Any]) -> tuple[Any, str]:
        """Return a fresh instance, and the text of its `reset`."""
        state = self._made()
        try:
            with suppress(ValueError):  # compiled code may have no signature
                inspect.signature(state.reset, follow_wrapped=False).bind(**row)
        except TypeError as error:
            columns = ", ".join(row)
            why = f"{self.name}.reset cannot be called with {columns}: {error}"
            raise RecipeError(f"task.environment: {why}") from error
        opening = state.reset(**row)
        if inspect.iscoroutine(opening):
            opening.close()
            raise RecipeError(f"task.environment: {self.name}.reset is `async def`, which as in TRL is not awaited")
        return state, "" if opening is None else render_output(opening)


def _before_work(what: str) -> AbstractContextManager[None]:
    """Raise RecipeError for what a user's class raises before there are rollouts."""
    return reraise_as(RecipeError, f"task.environment: {what}")


def _imported(path: str, key: str) -> Callable[..., Any]:
    if ":" not in path:
        raise RecipeError(f"task.{key}: '{path}' is no import path: write my_package.my_module:MyEnvironment")
    try:
        found: Callable[..., Any] = import_object(path)
    except ImportError as error:
        raise RecipeError(f"task.{key}: '{path}' cannot be imported: {error}") from error
    return found


def _spec(method: Callable[..., Any]) -> ToolSpec:
    try:
        from transformers.utils.chat_template_utils import (
            DocstringParsingException,
            TypeHintParsingException,
            get_json_schema,
        )
    except ImportError as missing:
        raise MissingExtra(f"the schemas of tools are made by transformers: {how_to_install('train')}") from missing
    try:
        function = get_json_schema(method)["function"]
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise RecipeError(f"task.environment: {method.__qualname__} cannot be a tool: {error}") from error
    return ToolSpec(function["name"], function["description"], function["parameters"])


def _copies(state: Any) -> bool:
    try:
        deepcopy(state)
    except Exception:  # noqa: BLE001 - whatever a user's own object raises
        return False
    return True


def _prompt(task: Task) -> list[dict[str, str]]:
    messages = [*([] if task.system is None else [("system", task.system)]), *task.before, ("user", task.question)]
    return [{"role": role, "content": text} for role, text in messages]


def _trl_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with parsed arguments of calls, where possible, and with the names of tools."""
    found: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in map(dict, messages):
        if message["role"] == "tool":
            message["name"] = names[message["tool_call_id"]]
        if "tool_calls" in message:
            message["tool_calls"] = [_trl_call(call) for call in message["tool_calls"]]
            names |= {call["id"]: call["function"]["name"] for call in message["tool_calls"]}
        found.append(message)
    return found


def _trl_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = read_arguments(function["arguments"])
    return {**call, "function": function if arguments is None else {**function, "arguments": arguments}}


def _unlogged(*_: object) -> None:
    """Stand in for TRL's `log_extra` and `log_metric`, and ignore them."""


async def _one(given: Any) -> float | None:
    """Return a reward given as a number or a list of one; None where the function does not judge."""
    given = await given if inspect.isawaitable(given) else given
    value = given[0] if isinstance(given, Sequence) else given
    return None if value is None else float(value)


class Trl(EnvironmentSection):
    """Section [task] of kind `trl`."""

    environment: str = Field("", description="import path of the class, or of a function that gives an instance")
    arguments: dict[str, Any] = Field({}, description="what that is called with")
    path: str = Field("", description="file whose rows `reset` is called with; column `prompt` is the prompt")
    seeds: NonNegative = Field(0, description="in place of a file: that many rows {seed = 0}, {seed = 1}, …")
    reward_functions: StrList = Field((), description="import paths of reward functions, beside `get_reward`")

    def adapter(self) -> Environment:
        factory = Factory(self.environment, self.arguments, self.reward_functions, self.faults)
        return MethodEnvironment(factory, load_rows(self.path, self.seeds))
