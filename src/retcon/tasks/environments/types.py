"""What an adapter shows of a user's environment, and which of its faults are the model's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, Protocol

from retcon.core.errors import InfrastructureFault
from retcon.core.schema import ToolSpec
from retcon.core.texts import without_turn_end
from retcon.core.types import Status, Trajectory
from retcon.tasks.types import Split, Task

Rollback = Literal["unneeded", "copy", "replay", "impossible"]
"""How the tools of a trajectory go back to an earlier state. `unneeded`: they have none, an answer depends on the call
alone. `copy`: the state is copied. `replay`: the environment begins anew, and the calls up to there are made again.
`impossible`: nothing can be repaired."""


class CallFailed(Exception):
    """A tool says that a call failed: what the model is told, as which kind of error."""

    def __init__(self, text: str, error_type: str | None = None, status: Status = "error") -> None:
        super().__init__(text)
        self.text, self.error_type, self.status = text, error_type, status


class Environment(Protocol):
    """A user's environment. A state is what the tools of one trajectory have between them, whatever that is.

    name: for ids and records. specs: of its tools. rollback: how a state is gone back to, where nobody says otherwise.
    """

    name: str
    specs: Sequence[ToolSpec]
    rollback: Rollback

    def tasks(self, split: Split) -> Sequence[Task]:
        """All its tasks, empty where it has none for evaluation. Raises RecipeError for a row that is no task."""
        ...

    def row(self, task: str) -> Mapping[str, Any]:
        """What the task of this id was made of, without what only numbers it: the same for tasks that are one problem.
        Raises RecipeError for a task of another set."""
        ...

    async def begin(self, task: str) -> Any:
        """A state as it is before the first call, for the task of this id. Raises InfrastructureFault; RecipeError
        where it does not begin as the task says."""
        ...

    async def call(self, state: Any, name: str, arguments: Mapping[str, Any]) -> str:
        """What a tool answers. state: None where there is none. Raises CallFailed, InfrastructureFault."""
        ...

    def copied(self, state: Any) -> Any:
        """The state once more, which no call on the other one changes. Raises whatever copying it raises."""
        ...

    async def end(self, state: Any) -> None:
        """No call follows; what it held is freed. The reward may still be asked for."""
        ...

    async def reward(self, task: Task, trajectory: Trajectory, state: Any) -> tuple[float, str | None]:
        """The reward of a rollout, and its answer where it has one. state: as the last call left it, or as it begins
        where there was none. Raises InfrastructureFault."""
        ...


@asynccontextmanager
async def ended_if_it_fails(end: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Ends what a setup had opened, where that setup raises or is cancelled. Why it did is what is raised then, and not
    what came of ending what was half set up."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            await end()
        raise


def failure(error: Exception | SystemExit, faults: Collection[str], text: str) -> CallFailed | InfrastructureFault:
    """What an exception is that a tool raised. faults: names of those, and of classes that they derive from, for which
    nobody blames the model. text: what the model is told of another one."""
    kind = type(error).__name__
    if isinstance(error, InfrastructureFault) or {base.__name__ for base in type(error).__mro__} & set(faults):
        return InfrastructureFault(f"the environment: {kind}: {error}")
    return CallFailed(text, kind, "timeout" if isinstance(error, TimeoutError) else "error")


def messages_of(trajectory: Trajectory) -> list[dict[str, Any]]:
    """What came after the prompt as OpenAI's messages, each call apart from the words before it. What a repair took out
    is in none of them; text after the last call of a message is not, either."""
    told: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        if not turn.calls:
            told.append({"role": "assistant", "content": without_turn_end(turn.text)})
            continue
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
                },
            }
            for call in turn.calls
        ]
        said = turn.text[: turn.calls[0].char].rstrip("\n")
        told.append({"role": "assistant", "content": said, "tool_calls": calls})
        told += [{"role": "tool", "tool_call_id": o.call_id, "content": o.text} for o in turn.observations]
    return told


def shown(said: Any) -> str:
    """What a tool gave, as the model is told it: text, and of parts of a message those that are text.

    Raises InfrastructureFault for a picture: nothing here can be shown one.
    """
    if not (isinstance(said, list) and said and all(isinstance(part, Mapping) and "type" in part for part in said)):
        return str(said)
    for part in said:
        if part["type"] != "text":
            raise InfrastructureFault(f"a tool gave a part of type {part['type']!r}, and only text can be told")
    return "\n".join(str(part.get("text", "")) for part in said)
