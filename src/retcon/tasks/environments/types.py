"""What an adapter shows of a user's environment, and which of its faults are the model's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from retcon.core.errors import InfrastructureFault, RecipeError
from retcon.core.seeds import derive
from retcon.core.texts import strip_turn_end
from retcon.core.types import Status, ToolSpec, Trajectory
from retcon.tasks.data.rows import read_rows
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
            told.append({"role": "assistant", "content": strip_turn_end(turn.text)})
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


def task_of(
    prompt: str | Sequence[Mapping[str, Any]], *, set: str, number: int, answer: object = "", after: str = ""
) -> Task:
    """Row `number` of a set of tasks. after: what stands after the question.

    Raises RecipeError where it is neither a text nor messages, a message is no text, or of another role, or the last
    one is not the user's.
    """
    where = f"row {number} of {set}"
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise RecipeError(f"{where}: its prompt is neither a text nor a list of messages: {prompt!r:.80}")
    told = [(str(message.get("role")), _text(message, where)) for message in messages]
    system = told.pop(0)[1] if told and told[0][0] == "system" else None
    if not told or told[-1][0] != "user":
        raise RecipeError(f"{where}: its prompt does not end with a message of the user, but: {_roles(told)}")
    *before, (_, question) = told
    if any(role not in ("user", "assistant") for role, _ in before):
        raise RecipeError(f"{where}: before the question only user and assistant may have spoken, not: {_roles(told)}")
    wanted = "" if answer is None else str(answer)
    id = f"{set}/{number}-{derive(question, wanted, after, *(text for _, text in before)) % 16**6:06x}"
    return Task(id, question + after, wanted, system, {}, tuple(before))


def _text(message: Mapping[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) < len(parts) or None in texts:
        raise RecipeError(f"{where}: a message of the {message.get('role')} is not text: {str(content)[:80]}")
    return "\n".join(map(str, texts))


def _roles(told: Sequence[tuple[str, str]]) -> str:
    return ", ".join(role for role, _ in told) or "nothing"


def rows_of(path: str, seeds: int) -> Sequence[Mapping[str, Any]]:
    """Those of a file (`retcon.tasks.data.rows`), or `{"seed": n}` for n from 0. Raises RecipeError where neither
    or both are named, DataError for a file that cannot be read."""
    if bool(path) == bool(seeds):
        raise RecipeError(
            "task.path, task.seeds: name one of them: the file whose rows the environment is reset with, or how many "
            "seeds, where it makes its tasks itself and `reset(seed=…)` says which"
        )
    return [dict(row.columns) for row in read_rows(Path(path))] if path else [{"seed": n} for n in range(seeds)]


class BegunRows:
    """The row of every task of an environment, and what `reset` said when the task was made. key: of [task], which
    names the environment."""

    def __init__(self, environment: str, key: str) -> None:
        self._environment, self._key = environment, key
        self._rows: dict[str, tuple[Mapping[str, Any], str]] = {}

    def keep(self, task: str, row: Mapping[str, Any], said: str = "") -> None:
        self._rows[task] = row, said

    def row(self, task: str) -> Mapping[str, Any]:
        """Raises RecipeError for a task of another set."""
        if task not in self._rows:
            raise RecipeError(f"{self._environment} has no task {task!r}, and its tools begin with one of its own")
        return self._rows[task][0]

    def check(self, task: str, said: str) -> None:
        """Raises RecipeError where `reset` says something else now."""
        before = self._rows[task][1]
        if said != before:
            raise RecipeError(
                f"task.{self._key}: {self._environment} says something else for the same row: {said[:80]!r} after "
                f"{before[:80]!r}; what it draws must follow from the row (task.seeds)"
            )
