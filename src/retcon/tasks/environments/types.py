"""Protocol of environments, and helpers for their adapters."""

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
"""How the tools of a trajectory restore an earlier state. `unneeded`: they have none, an answer depends on the call
alone. `copy`: the state is copied. `replay`: the environment begins anew, and the calls up to there are made again.
`impossible`: nothing can be repaired."""


class CallFailed(Exception):
    """A tool's call failed: the text for the model, and the kind of error."""

    def __init__(self, text: str, error_type: str | None = None, status: Status = "error") -> None:
        super().__init__(text)
        self.text, self.error_type, self.status = text, error_type, status


class Environment(Protocol):
    """A user's environment; its tools share a state in each trajectory.

    name: for ids and records. specs: of its tools. rollback: the default of `task.rollback`.
    """

    name: str
    specs: Sequence[ToolSpec]
    rollback: Rollback

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return all tasks of a split, which may be empty. Raises RecipeError for an invalid row."""
        ...

    def row(self, task: str) -> Mapping[str, Any]:
        """Return a task's row without its number, equal for equal problems. Raises RecipeError for a task of another
        set."""
        ...

    async def begin(self, task: str) -> Any:
        """Begin a task and return the state before the first call. Raises InfrastructureFault; RecipeError where it
        does not begin as the task says."""
        ...

    async def call(self, state: Any, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a tool's answer to a call. state: None for stateless tools. Raises CallFailed, InfrastructureFault."""
        ...

    def copy_state(self, state: Any) -> Any:
        """Return an independent copy of a state. Raises what copying raises."""
        ...

    async def end(self, state: Any) -> None:
        """Free a state's resources after its last call; its reward may still be asked for."""
        ...

    async def reward(self, task: Task, trajectory: Trajectory, state: Any) -> tuple[float, str | None]:
        """Return a rollout's reward, and its answer if any. state: after the last call, or a fresh one. Raises
        InfrastructureFault."""
        ...


@asynccontextmanager
async def cleanup_on_error(end: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Call `end` if the block raises or is cancelled. The block's error is raised then, not one of ending something
    half set up."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            await end()
        raise


def classify_error(
    error: Exception | SystemExit, faults: Collection[str], text: str
) -> CallFailed | InfrastructureFault:
    """Turn a tool's exception into the model's failure or a fault. faults: names of exception classes, or their bases,
    that are not the model's fault. text: shown to the model for another one."""
    kind = type(error).__name__
    if isinstance(error, InfrastructureFault) or {base.__name__ for base in type(error).__mro__} & set(faults):
        return InfrastructureFault(f"the environment: {kind}: {error}")
    return CallFailed(text, kind, "timeout" if isinstance(error, TimeoutError) else "error")


def completion_messages(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the turns after the prompt as OpenAI's messages. Attempts removed by a repair are left out, and text after
    the last call of a message."""
    messages: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        if not turn.calls:
            messages.append({"role": "assistant", "content": strip_turn_end(turn.text)})
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
        text = turn.text[: turn.calls[0].char].rstrip("\n")
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": o.call_id, "content": o.text} for o in turn.observations]
    return messages


def render_output(out: Any) -> str:
    """Render a tool's output as text for the model; parts of a message are joined.

    Raises InfrastructureFault for a picture: models here read text alone.
    """
    if not (isinstance(out, list) and out and all(isinstance(part, Mapping) and "type" in part for part in out)):
        return str(out)
    for part in out:
        if part["type"] != "text":
            raise InfrastructureFault(f"a tool gave a part of type {part['type']!r}: only text is supported")
    return "\n".join(str(part.get("text", "")) for part in out)


def build_task(
    prompt: str | Sequence[Mapping[str, Any]], *, set: str, number: int, answer: object = "", after: str = ""
) -> Task:
    """Build the task of row `number` of a set. after: text after the question.

    Raises RecipeError for a prompt that is neither a text nor messages, a message without text or with another role,
    and a last message that is not the user's.
    """
    where = f"row {number} of {set}"
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise RecipeError(f"{where}: its prompt is neither a text nor a list of messages: {prompt!r:.80}")
    texts = [(str(message.get("role")), _text(message, where)) for message in messages]
    system = texts.pop(0)[1] if texts and texts[0][0] == "system" else None
    if not texts or texts[-1][0] != "user":
        raise RecipeError(f"{where}: its prompt does not end with a message of the user, but: {_roles(texts)}")
    *before, (_, question) = texts
    if any(role not in ("user", "assistant") for role, _ in before):
        raise RecipeError(f"{where}: before the question only user and assistant may have spoken, not: {_roles(texts)}")
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


def _roles(texts: Sequence[tuple[str, str]]) -> str:
    return ", ".join(role for role, _ in texts) or "nothing"


def load_rows(path: str, seeds: int) -> Sequence[Mapping[str, Any]]:
    """Return a file's rows (`retcon.tasks.data.rows`), or `{"seed": n}` for n from 0. Raises RecipeError unless exactly
    one is named, DataError for a file that cannot be read."""
    if bool(path) == bool(seeds):
        raise RecipeError(
            "task.path, task.seeds: name one of them: the file whose rows the environment is reset with, or how many "
            "seeds, where it makes its tasks itself and `reset(seed=…)` says which"
        )
    return [dict(row.columns) for row in read_rows(Path(path))] if path else [{"seed": n} for n in range(seeds)]


class TaskRows:
    """Rows of an environment's tasks, with the texts of `reset`. key: of [task], which names the environment."""

    def __init__(self, environment: str, key: str) -> None:
        self._environment, self._key = environment, key
        self._rows: dict[str, tuple[Mapping[str, Any], str]] = {}

    def keep(self, task: str, row: Mapping[str, Any], opening: str = "") -> None:
        self._rows[task] = row, opening

    def row(self, task: str) -> Mapping[str, Any]:
        """Return a task's row. Raises RecipeError for a task of another set."""
        if task not in self._rows:
            raise RecipeError(f"{self._environment} has no task {task!r}, and its tools begin with one of its own")
        return self._rows[task][0]

    def check(self, task: str, opening: str) -> None:
        """Raise RecipeError where `reset` now returns another text."""
        before = self._rows[task][1]
        if opening != before:
            raise RecipeError(
                f"task.{self._key}: {self._environment} says something else for the same row: {opening[:80]!r} after "
                f"{before[:80]!r}; what it draws must follow from the row (task.seeds)"
            )
