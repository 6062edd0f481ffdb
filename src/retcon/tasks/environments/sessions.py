"""The tools of an environment, whose trajectories each have a state of their own that all their tools share."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from retcon.core.errors import InfrastructureFault
from retcon.core.schema import ToolSpec
from retcon.core.types import Observation, Status, ToolCall
from retcon.sandbox.jail.capture import cut_middle
from retcon.tasks.environments.types import CallFailed, Environment, Rollback

UNGRADED = 1 << 14
"""States that are kept for grading at most. That of a rollout that was lost is kept until another one of its id
begins."""


class Sessions:
    """All trajectories of an environment. rollback: as in `Rollback`."""

    def __init__(self, environment: Environment, rollback: Rollback) -> None:
        self.environment = environment
        self.rollback = rollback
        self._open: dict[str, EnvironmentSession] = {}
        self._over: OrderedDict[str, Any] = OrderedDict()

    def tools(self, output_chars: int) -> list[StatelessTool] | list[EnvironmentTool]:
        """output_chars: characters of an observation at most."""
        if self.rollback == self.environment.rollback == "unneeded":  # else its calls take a state all the same
            return [StatelessTool(self.environment, spec, output_chars) for spec in self.environment.specs]
        return [EnvironmentTool(self, spec, output_chars) for spec in self.environment.specs]

    def begun(self, trajectory: str) -> None:
        """A rollout of this id begins: what another one left, which was lost and will not be graded, is not its own."""
        self._over.pop(trajectory, None)

    async def opened(self, task: str, trajectory: str) -> EnvironmentSession:
        """The session of a trajectory, one more tool of which has it now. Raises InfrastructureFault."""
        if trajectory not in self._open:
            state = await self.environment.begin(task)
            self._open[trajectory] = EnvironmentSession(self.environment, self.rollback, task, state)
        self._open[trajectory].users += 1
        return self._open[trajectory]

    async def left(self, trajectory: str) -> None:
        """One tool has done with it; after the last one the state is kept until it is graded."""
        session = self._open[trajectory]
        session.users -= 1
        if session.users:
            return
        del self._open[trajectory]
        self._over[trajectory] = session.state
        while len(self._over) > UNGRADED:
            self._over.popitem(last=False)
        await self.environment.end(session.state)

    async def final(self, task: str, trajectory: str) -> Any:
        """The state in which a trajectory left its tools, for the one time that it is graded; as it begins for one that
        made no call. Raises InfrastructureFault."""
        if trajectory in self._over:
            return self._over.pop(trajectory)
        state = await self.environment.begin(task)
        await self.environment.end(state)
        return state


@dataclass(frozen=True, slots=True)
class _Made:
    """A call that was made, and what it was told, in so many characters at most."""

    call: ToolCall
    told: Observation
    output_chars: int

    def same(self, other: Observation) -> bool:
        mine = self.told
        return (mine.text, mine.status, mine.error_type) == (other.text, other.status, other.error_type)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A checkpoint: the calls that led to it, and the state where it is copied."""

    made: tuple[_Made, ...]
    state: Any = None


class EnvironmentSession:
    """One trajectory's state, with the checkpoints of it. users: tools that have it."""

    def __init__(self, environment: Environment, rollback: Rollback, task: str, state: Any) -> None:
        self.state = state
        self.users = 0
        self._environment, self._rollback, self._task = environment, rollback, task
        self._made: tuple[_Made, ...] = ()
        self._kept: dict[str, _Kept] = {}
        self._named = 0
        self._at: _Kept | None = None  # whose state is the present one: each of several tools asks for the same

    async def call(self, call: ToolCall, output_chars: int) -> Observation:
        self._at = None
        told = await answered(self._environment, self.state, call, output_chars)
        self._made = (*self._made, _Made(call, told, output_chars))
        return told

    async def checkpoint(self) -> str:
        """See `retcon.tools.types.OpenTool`, as for the others."""
        if self._rollback == "impossible":
            raise InfrastructureFault(f"the state of {self._environment.name} cannot be kept (task.rollback)")
        if self._at is None:
            copy = self._rollback == "copy"
            self._at = _Kept(self._made, self._copied(self.state) if copy else None)
        self._named += 1
        self._kept[str(self._named)] = self._at
        return str(self._named)

    async def rollback(self, checkpoint: str) -> None:
        kept = self._kept.get(checkpoint)
        if kept is None:
            raise InfrastructureFault(f"no checkpoint {checkpoint!r} of {self._environment.name}")
        if kept is self._at:
            return
        if self._rollback == "copy":
            self.state = self._copied(kept.state)
        elif self._rollback == "replay":
            await self._replay(kept.made)
        self._made, self._at = kept.made, kept

    async def discard(self, checkpoint: str) -> None:
        self._kept.pop(checkpoint, None)

    async def _replay(self, made: Sequence[_Made]) -> None:
        await self._environment.end(self.state)
        self.state = await self._environment.begin(self._task)
        for one in made:
            again = await answered(self._environment, self.state, one.call, one.output_chars)
            if not one.same(again):
                raise InfrastructureFault(
                    f"{self._environment.name}: the same calls were answered otherwise when they were made again, so "
                    f"that its state cannot be gone back to by task.rollback = 'replay': {one.call.name}"
                )

    def _copied(self, state: Any) -> Any:
        try:
            return self._environment.copied(state)
        except Exception as error:  # copying runs the user's own code
            raise InfrastructureFault(f"the state of {self._environment.name} cannot be copied: {error}") from error


async def answered(environment: Environment, state: Any, call: ToolCall, output_chars: int) -> Observation:
    """What the environment says to a call, which has arguments; `infrastructure` where that is a fault of its own."""
    assert not isinstance(call.arguments, str)  # `rollout.calls` answers those
    began = time.perf_counter()
    status: Status = "ok"
    kind: str | None = None
    try:
        text = await environment.call(state, call.name, dict(call.arguments))
    except CallFailed as failed:
        text, status, kind = failed.text, failed.status, failed.error_type
    except InfrastructureFault as fault:
        text, status, kind = str(fault), "infrastructure", type(fault).__name__
    seconds = time.perf_counter() - began
    return Observation(call.id, cut_middle(text, output_chars), status, kind, seconds)


class StatelessTool:
    """A tool whose answers depend on the call alone. Implements `retcon.tools.types.Tool`."""

    def __init__(self, environment: Environment, spec: ToolSpec, output_chars: int) -> None:
        self.name, self.spec = spec.name, spec
        self._environment, self._output_chars = environment, output_chars

    async def __call__(self, call: ToolCall) -> Observation:
        return await answered(self._environment, None, call, self._output_chars)


class EnvironmentTool:
    """A tool of an environment that begins with a task. Implements `retcon.tools.types.TaskTool`."""

    def __init__(self, sessions: Sessions, spec: ToolSpec, output_chars: int) -> None:
        self.name, self.spec = spec.name, spec
        self._sessions, self._output_chars = sessions, output_chars

    def of(self, task: str, trajectory: str) -> _OfTask:
        self._sessions.begun(trajectory)
        return _OfTask(self._sessions, self.spec, self._output_chars, task)


class _OfTask:
    """Implements `retcon.tools.types.StatefulTool`."""

    def __init__(self, sessions: Sessions, spec: ToolSpec, output_chars: int, task: str) -> None:
        self.name, self.spec = spec.name, spec
        self._sessions, self._output_chars, self._task = sessions, output_chars, task

    async def open(self, trajectory: str) -> _Open:
        session = await self._sessions.opened(self._task, trajectory)
        return _Open(self._sessions, session, self.spec, self._output_chars, trajectory)


class _Open:
    """One tool's share of a session. Implements `retcon.tools.types.OpenTool`."""

    def __init__(
        self, sessions: Sessions, session: EnvironmentSession, spec: ToolSpec, output_chars: int, trajectory: str
    ) -> None:
        self.name, self.spec = spec.name, spec
        self.checkpoint, self.rollback, self.discard = session.checkpoint, session.rollback, session.discard
        self._sessions, self._session = sessions, session
        self._output_chars, self._trajectory = output_chars, trajectory

    async def __call__(self, call: ToolCall) -> Observation:
        return await self._session.call(call, self._output_chars)

    async def close(self) -> None:
        await self._sessions.left(self._trajectory)
