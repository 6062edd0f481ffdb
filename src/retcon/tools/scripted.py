"""Tools with scripted answers, stateless and stateful, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Literal

from retcon.core.errors import CheckpointRefused, InfrastructureFault, RetconError, nearest
from retcon.core.types import Observation, Status, ToolCall, ToolSpec

Answer = tuple[str, Status, str | None]


class MissingAnswer(RetconError, KeyError):
    """A program without an answer in the script: an error of the test, not an infrastructure fault."""


class ScriptedTool:
    """Tool with scripted answers; implements `Tool`.

    answers: (text, status, error type) by code, a mapping or a function; MissingAnswer is raised for other code. spec:
    any object of arguments if None. executed: the code of every call, in order.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer] | Callable[[str], Answer],
        name: str = "python",
        *,
        spec: ToolSpec | None = None,
    ) -> None:
        self.name = name
        self.spec = spec or ToolSpec(name)
        self.answers = answers
        self.executed: list[str] = []

    async def __call__(self, call: ToolCall) -> Observation:
        self.executed.append(call.code)
        text, status, error_type = self.answers(call.code) if callable(self.answers) else self._look_up(call.code)
        return Observation(call.id, text, status, error_type)

    def _look_up(self, code: str) -> Answer:
        assert not callable(self.answers)
        if code not in self.answers:
            raise MissingAnswer(f"the script has no answer to {code!r}{nearest(code, self.answers)}")
        return self.answers[code]


State = dict[str, Any]
Operation = Literal["open", "checkpoint", "rollback", "close"]


class ScriptedSessions:
    """Stateful tool without a sandbox; implements `StatefulTool`.

    answers: (text, status, error type) of a program, given its trajectory's state, which it may change; the state
    begins empty, and `copy.deepcopy` must copy it. broken: operations that raise InfrastructureFault. refuses: reason
    why a state cannot be kept (CheckpointRefused), else empty. opened: sessions in order.
    """

    def __init__(
        self,
        answers: Callable[[str, State], Answer],
        name: str = "python",
        *,
        broken: Iterable[Operation] = (),
        refuses: Callable[[State], str] = lambda _: "",
    ) -> None:
        self.name = name
        self.spec = ToolSpec(name)
        self.answers = answers
        self.broken = frozenset(broken)
        self.refuses = refuses
        self.opened: list[ScriptedSession] = []

    async def open(self, trajectory: str) -> ScriptedSession:
        self.check("open")
        self.opened.append(ScriptedSession(self, trajectory))
        return self.opened[-1]

    def check(self, operation: Operation) -> None:
        """Raise InfrastructureFault if this operation is scripted to fail."""
        if operation in self.broken:
            raise InfrastructureFault(f"the script breaks {operation}")


class ScriptedSession:
    """One trajectory's session; implements `OpenTool`.

    state: the current one. events: operations in order: `run CODE`, `checkpoint NAME`, `rollback NAME`, `discard NAME`,
    `close`. kept: the checkpoints that were not discarded.
    """

    def __init__(self, tool: ScriptedSessions, trajectory: str) -> None:
        self.name = tool.name
        self.spec = tool.spec
        self.trajectory = trajectory
        self.state: State = {}
        self.events: list[str] = []
        self.kept: dict[str, State] = {}
        self._tool = tool
        self._taken = 0

    async def __call__(self, call: ToolCall) -> Observation:
        self.events.append(f"run {call.code}")
        text, status, error_type = self._tool.answers(call.code, self.state)
        return Observation(call.id, text, status, error_type)

    async def checkpoint(self) -> str:
        self._tool.check("checkpoint")
        if why := self._tool.refuses(self.state):
            raise CheckpointRefused(why)
        self._taken += 1
        name = str(self._taken)
        self.events.append(f"checkpoint {name}")
        self.kept[name] = deepcopy(self.state)
        return name

    async def rollback(self, checkpoint: str) -> None:
        self._tool.check("rollback")
        self.events.append(f"rollback {checkpoint}")
        if checkpoint not in self.kept:
            raise InfrastructureFault(f"no checkpoint {checkpoint!r}{nearest(checkpoint, self.kept)}")
        self.state = deepcopy(self.kept[checkpoint])

    async def discard(self, checkpoint: str) -> None:
        self.events.append(f"discard {checkpoint}")
        self.kept.pop(checkpoint, None)

    async def close(self) -> None:
        self.events.append("close")
        self._tool.check("close")
