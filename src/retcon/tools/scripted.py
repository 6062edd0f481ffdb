"""Tools that give scripted answers, with and without state: for tests of what calls tools, yours too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Literal

from retcon.core.errors import CheckpointRefused, InfrastructureFault, RetconError, nearest
from retcon.core.types import Observation, Status, ToolCall, ToolSpec

Answer = tuple[str, Status, str | None]


class NoAnswer(RetconError, KeyError):
    """A script has no answer to a program: a test that is wrong, and not a fault that costs a rollout."""


class ScriptedTool:
    """Answers a program with (text, status, error type), from a mapping or a function of its code; implements `Tool`.

    spec: what it declares; any object of arguments where None.
    executed: the code of every call, in order. Code that a mapping lacks is `NoAnswer`, a KeyError: the script is
    wrong, not the model.
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
            raise NoAnswer(f"the script has no answer to {code!r}{nearest(code, self.answers)}")
        return self.answers[code]


State = dict[str, Any]
Operation = Literal["open", "checkpoint", "rollback", "close"]


class ScriptedSessions:
    """A tool that keeps state, without a sandbox; implements `StatefulTool`.

    answers: (text, status, error type) of a program, given the state of its trajectory, which it may change; the state
    begins empty and must be such that `copy.deepcopy` copies it. broken: operations that raise InfrastructureFault.
    refuses: why a state cannot be kept (CheckpointRefused), empty where it can.
    opened: the session of every trajectory, in the order of opening.
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
        """Raises InfrastructureFault where this operation is scripted to fail."""
        if operation in self.broken:
            raise InfrastructureFault(f"the script breaks {operation}")


class ScriptedSession:
    """One trajectory's session; implements `OpenTool`.

    state: as it is now. events: what was asked of it, in order: `run CODE`, `checkpoint NAME`, `rollback NAME`,
    `discard NAME`, `close`. kept: the checkpoints that were not discarded.
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
