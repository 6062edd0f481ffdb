"""The Python tool with a memory: one interpreter for all calls of a trajectory."""

from __future__ import annotations

from retcon.core.errors import CheckpointRefused, InfrastructureFault, SessionLost
from retcon.core.seeds import derive
from retcon.core.types import Observation, ToolCall
from retcon.sandbox.types import Limits, Sandbox, Session
from retcon.tools.schema import python_spec
from retcon.tools.types import OpenTool
from retcon.tools.wording import FAULTS, Wording

RESTARTED = "[The interpreter was restarted: variables and files are gone.]"


class PythonSessions:
    """Implements `retcon.tools.types.StatefulTool` over a sandbox: a session for every trajectory.

    output_chars: characters of an observation at most (`retcon.tools.wording`). limits: of each call, the sandbox's own
    where None. Random numbers follow from the trajectory's id, and from how often its interpreter was restarted on the
    way to where it is now, so that a rollout repeats.
    """

    def __init__(
        self, sandbox: Sandbox, *, name: str = "python", output_chars: int = 2000, limits: Limits | None = None
    ) -> None:
        self.name = name
        self.spec = python_spec(name, keeps_state=True)
        self._sandbox = sandbox
        self._wording = Wording(name, output_chars)
        self._limits = limits

    async def open(self, trajectory: str) -> OpenTool:
        try:
            session = await self._sandbox.session(limits=self._limits, seed=derive("python", trajectory))
        except FAULTS as error:
            raise InfrastructureFault(f"no interpreter for trajectory {trajectory}: {error}") from error
        return PythonSession(self._sandbox, session, self._wording, self._limits, trajectory)


class PythonSession:
    """Implements `retcon.tools.types.OpenTool`.

    Code that ends its interpreter has that as its own observation, and the next call a fresh interpreter, which is
    said. So has code whose state cannot be gone back to through its own doing (it ended the frozen copies): it must not
    come out as a fault of ours, for which a rollout is dropped. A state that cannot be kept (threads, processes and
    sockets that are open, folders nested too deep) stays as it is: CheckpointRefused. Where the sandbox lost the
    session (evicted, worker died), every further call is `infrastructure`.
    """

    def __init__(
        self, sandbox: Sandbox, session: Session, wording: Wording, limits: Limits | None, trajectory: str
    ) -> None:
        self.name = wording.name
        self.spec = python_spec(self.name, keeps_state=True)
        self._sandbox = sandbox
        self._session = session
        self._wording = wording
        self._limits = limits
        self._trajectory = trajectory
        self._restarts = 0
        self._notice = ""  # for the next observation
        self._named = 0
        self._checkpoints: dict[str, tuple[Session, str, str, int]] = {}  # session, its name there, notice, restarts

    async def __call__(self, call: ToolCall) -> Observation:
        malformed = self._wording.malformed(call)
        if malformed is not None:
            return malformed
        try:
            try:
                result = await self._session.run(call.code)
            except SessionLost as error:
                await self._restart(error)
                result = await self._session.run(call.code)
        except FAULTS as error:
            return self._wording.fault(call, error)
        notice, self._notice = self._notice, ""
        return self._wording.observation(call, result, notice)

    async def checkpoint(self) -> str:
        try:
            try:
                name = await self._session.checkpoint()
            except SessionLost as error:
                await self._restart(error)
                name = await self._session.checkpoint()
        except CheckpointRefused:
            raise
        except FAULTS as error:
            raise InfrastructureFault(f"no checkpoint: {error}") from error
        self._named += 1
        own = f"state {self._named}"
        self._checkpoints[own] = (self._session, name, self._notice, self._restarts)
        return own

    async def rollback(self, checkpoint: str) -> None:
        if checkpoint not in self._checkpoints:
            raise InfrastructureFault(f"no checkpoint {checkpoint!r} to go back to")
        session, name, notice, self._restarts = self._checkpoints[checkpoint]
        try:
            try:
                await session.rollback(name)
            except SessionLost as error:
                await self._restart(error)
                name = await self._session.checkpoint()
                self._checkpoints[checkpoint] = (self._session, name, RESTARTED, self._restarts)
                await self._close_unless_needed(session)
                return
        except FAULTS as error:
            raise InfrastructureFault(f"cannot go back to {checkpoint!r}: {error}") from error
        left, self._session, self._notice = self._session, session, notice
        await self._close_unless_needed(left)

    async def discard(self, checkpoint: str) -> None:
        if checkpoint in self._checkpoints:
            session, name, *_ = self._checkpoints.pop(checkpoint)
            await session.discard(name)
            await self._close_unless_needed(session)

    async def close(self) -> None:
        for session in {self._session, *(used[0] for used in self._checkpoints.values())}:
            await session.close()
        self._checkpoints.clear()

    async def _restart(self, cause: SessionLost) -> None:
        """Go on in a fresh session; the old one stays while there are checkpoints in it. Raises `cause` where that is
        the sandbox's fault."""
        if not cause.by_own_code:
            raise cause
        self._restarts += 1
        seed = derive("python", self._trajectory, self._restarts)
        left, self._session = self._session, await self._sandbox.session(limits=self._limits, seed=seed)
        self._notice = RESTARTED
        await self._close_unless_needed(left)

    async def _close_unless_needed(self, session: Session) -> None:
        if session is not self._session and all(session is not used[0] for used in self._checkpoints.values()):
            await session.close()
