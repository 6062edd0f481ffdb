"""Pool's side of sessions: each has its own worker (`keeper`) and a place."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self, Unpack

import msgspec

from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost, nearest
from retcon.core.machine import total_memory
from retcon.core.texts import counted
from retcon.sandbox.jail.messages import (
    CHECKPOINTS,
    TOO_MANY,
    Bounds,
    Discard,
    HostCall,
    HostReturn,
    MakeCheckpoint,
    Message,
    OpenSession,
    Outcome,
    RollBack,
    RunCall,
    SessionReply,
)
from retcon.sandbox.jail.session.functions import MAX_BYTES
from retcon.sandbox.pool.handles import BACKSTOP_SECONDS, WorkerHandle
from retcon.sandbox.pool.paths import check_room, inside_scratch, to_write
from retcon.sandbox.types import HostFunction, Limits, Program, ProgramOptions, Result, SessionBounds, as_cell


def call(program: Program, limits: Limits, tier: str, folders: Sequence[str]) -> RunCall:
    """Make the message of a call. limits: of its run. tier, folders: the worker's. Raises ValueError for a path outside
    of the program's folders."""
    files = _encoded(program, tier, folders)
    fetch = inside_scratch(program.fetch, tier, folders)
    return RunCall(program.code, program.stdin, bounds(limits), files, program.echo, fetch, program.seed)


def cell(program: Program, limits: Limits, file_mb: int, tier: str, folders: Sequence[str]) -> RunCall:
    """Make the message of a session's cell; files are in scratch.

    tier, folders: the worker's, from which it returns files. file_mb: the session's limit, which also holds for a
    cell's input files, as its interpreter writes them. Raises ValueError above it.
    """
    sizes = {f"file {name!r}": len(content) for name, content in program.files.items()}
    sizes["stdin"] = len(program.stdin.encode("utf-8", "surrogateescape"))
    for what, size in sizes.items():
        if size > file_mb << 20:
            raise ValueError(
                f"{what} takes {size / (1 << 20):.1f} MiB, above the session's limit file_mb of {file_mb}: open the "
                "session with more"
            )
    fetch = inside_scratch(program.fetch, tier, folders)
    return RunCall(program.code, program.stdin, bounds(limits), _encoded(program, "", ()), program.echo, fetch)


def as_result(outcome: Outcome) -> Result:
    """Decode a worker's result: files from base64, with status and tier checked."""
    return msgspec.convert(outcome._asdict(), Result)


def bounds(limits: Limits) -> Bounds:
    return Bounds._make(getattr(limits, name) for name in Bounds._fields)


def _encoded(program: Program, tier: str, folders: Sequence[str]) -> dict[str, str]:
    files = program.files
    check_room(files, program.stdin)
    return {name: base64.b64encode(files[name]).decode() for name in to_write(files, tier, folders)}


class RunningCells:
    """Semaphore of running cells; those that go on after a function come before those that begin.

    Else a cell that calls a function would end after all others have begun, each in a worker of its own.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._going_on = deque[asyncio.Future[None]]()
        self._beginning = deque[asyncio.Future[None]]()

    async def acquire(self, *, going_on: bool = False) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        (self._going_on if going_on else self._beginning).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        for waiting in (self._going_on, self._beginning):
            while waiting:
                if not (turn := waiting.popleft()).done():
                    turn.set_result(None)
                    return
        self._free += 1


class RunningSlot:
    """A running cell's slot, which others get while it waits for functions.

    (A function may itself run cells, as a rollout below this one does.)
    """

    def __init__(self, running: RunningCells) -> None:
        self._running = running
        self._held = False
        self._waiting = 0

    async def __aenter__(self) -> Self:
        await self._running.acquire()
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._give()

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        self._waiting += 1
        self._give()
        try:
            yield
        finally:
            self._waiting -= 1
        if not self._waiting and not self._held:
            await self._running.acquire(going_on=True)
            self._held = True
            if self._waiting:  # another thread has called meanwhile
                self._give()

    def _give(self) -> None:
        if self._held:
            self._held = False
            self._running.release()


async def answer_call(functions: Mapping[str, HostFunction], body: str) -> str:
    """Call a cell's function; return the answer's JSON, a value or an error.

    body: untrusted JSON of the call.
    """
    try:
        name, args, kwargs = msgspec.json.decode(body.encode(), type=tuple[str, list[Any], dict[str, Any]])
        if name not in functions:
            raise ValueError(f"there is no function {name!r} here{nearest(name, functions)}")
        value = await functions[name](*args, **kwargs)
        answer = msgspec.json.encode({"value": value}).decode()
    except Exception as error:  # noqa: BLE001 - the program that called it gets it
        answer = msgspec.json.encode({"error": f"{type(error).__name__}: {error}"[:ERROR_CHARS]}).decode()
    if len(answer) > MAX_BYTES:
        return msgspec.json.encode({"error": f"the answer takes more than {MAX_BYTES} bytes as JSON"}).decode()
    return answer


ERROR_CHARS = 2000
OPERATION_SECONDS = 60.0  # for a checkpoint or a rollback, likewise
FIXED = ("memory_mb", "file_mb", "open_files", "processes")  # they cannot be raised again


class PoolSession:
    """Session of a pool, made by `Sessions.open`; implements `Session`.

    Its worker starts with the first cell, whose imports choose it; the opening runs and earlier checkpoints are made
    then, so that sessions which each have one cell follow one another in a few workers.
    """

    def __init__(
        self,
        limits: Limits,
        seed: int | None,
        sessions: Sessions,
        functions: Mapping[str, HostFunction],
        opening: Program | None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.memory = 0
        self.worker: WorkerHandle | None = None
        self._limits = limits
        self._seed = seed
        self._sessions = sessions
        self._functions = functions
        self._opening = cell(opening, limits, limits.file_mb, *sessions.paths()) if opening else None
        self._one = asyncio.Lock()
        self._users = 0
        self._lost: SessionLost | None = None
        self._ended = False
        self._checkpoints: list[str] = []
        self._named = 0

    @property
    def busy(self) -> bool:
        return self._users > 0

    @property
    def ended(self) -> bool:
        """Whether it has ended for good, without rollback."""
        return self._ended

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a cell; see `Session.run`. Cancelling it ends the session.

        Raises as `Sandbox.run`, and ValueError for limits of memory, files or processes above the session's own, and
        for a file or stdin above its `file_mb`.
        """
        asked_for = as_cell(program, options)
        limits = asked_for.limits_within(self._limits)
        for name in FIXED:
            asked, had = getattr(limits, name), getattr(self._limits, name)
            if asked > had:
                raise ValueError(f"limit {name} is {asked}, above the session's {had}: open the session with more")
        message = cell(asked_for, limits, self._limits.file_mb, *self._sessions.paths())
        async with self._using(), RunningSlot(self._sessions.running) as slot:
            self._check()
            serve = partial(self._serve, slot) if self._functions else None
            seconds, first = limits.wall_seconds + BACKSTOP_SECONDS, self.worker is None and not self._functions
            try:
                worker = self.worker or await self._start(asked_for.code)
                answer = await self._ask(worker, message, seconds, serve, first=first)
                if answer is None and not self._ended:
                    worker = await self._start(asked_for.code)
                    answer = await self._ask(worker, message, seconds, serve)
            except SandboxUnavailable as error:
                self.end(str(error))
                return Result("infrastructure", stderr=str(error))
            if answer is None or answer.outcome is None:
                if self._lost is not None and self._lost.by_own_code:  # since the rollback before it
                    raise self._lost
                return Result("infrastructure", stderr=str(self._lost), tier=worker.tier if answer is None else None)
            return as_result(answer.outcome)

    async def _start(self, code: str) -> WorkerHandle:
        """Raises SandboxUnavailable, SessionLost."""
        opening = OpenSession(bounds(self._limits), self._seed, list(self._functions))
        self.worker = worker = await self._sessions.start(code, opening)
        if self._ended:  # meanwhile, when there was no worker to end
            worker.kill()
        if self._opening is not None:
            answer = await self._ask(worker, self._opening, self._limits.wall_seconds + BACKSTOP_SECONDS)
            outcome = None if answer is None else answer.outcome
            if outcome is None or outcome.status != "ok":
                why = str(self._lost) if outcome is None else outcome.stderr.strip()[-ERROR_CHARS:] or outcome.status
                raise SandboxUnavailable(f"the session cannot be opened: {why}")
        for name in self._checkpoints:
            await self._keep(worker, name)
        return worker

    async def _keep(self, worker: WorkerHandle, name: str) -> None:
        """Raises SandboxUnavailable, SessionLost."""
        self._check()
        answer = await self._ask(worker, MakeCheckpoint(name), OPERATION_SECONDS)
        if answer is not None and answer.refused:
            raise CheckpointRefused(answer.refused, full=answer.full)
        self._check()

    async def checkpoint(self) -> str:
        """Make a checkpoint; see `Session.checkpoint`. Raises CheckpointRefused if there are too many or too large."""
        async with self._using():
            self._check()
            self._named += 1
            name = f"checkpoint {self._named}"
            if self.worker is not None:
                await self._keep(self.worker, name)
            elif len(self._checkpoints) >= CHECKPOINTS:
                raise CheckpointRefused(TOO_MANY, full=True)
            self._checkpoints.append(name)
            return name

    async def rollback(self, checkpoint: str) -> None:
        async with self._using():
            if self._ended:
                self._check()
            if checkpoint not in self._checkpoints:
                raise KeyError(f"no checkpoint {checkpoint!r} in this session{nearest(checkpoint, self._checkpoints)}")
            self._checkpoints.remove(checkpoint)
            if self.worker is not None:
                self._lost = None
                await self._ask(self.worker, RollBack(checkpoint), OPERATION_SECONDS)
                self._check()
            self._checkpoints.append(checkpoint)

    async def discard(self, checkpoint: str) -> None:
        async with self._using():
            if checkpoint in self._checkpoints:
                self._checkpoints.remove(checkpoint)
                if self.worker is not None:
                    await self._ask(self.worker, Discard(checkpoint), OPERATION_SECONDS)

    async def close(self) -> None:
        """Close the session; its worker serves a later one, unless an operation is in progress."""
        free = None if self.busy or self._lost is not None else self.worker
        if free is not None:
            self.worker = None
        self.end("it was closed")
        if free is not None:
            await self._sessions.give_back(free)

    def end(self, cause: str, *, by_own_code: bool = False) -> None:
        """End its worker and all that runs in it. Idempotent."""
        if self._ended:
            return
        self._ended = True
        self._lose(cause, by_own_code=by_own_code)
        self._checkpoints.clear()
        if self.worker is not None:
            self.worker.kill()
        self._sessions.free_place(self)

    def _lose(self, cause: str, *, by_own_code: bool) -> None:
        self._lost = SessionLost(f"sandbox session {self.id[:8]} is lost: {cause}", by_own_code=by_own_code)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """Lock the session for one operation."""
        self._users += 1
        try:
            async with self._one:
                self._sessions.stop_idle_timer(self)
                yield
        finally:
            self._users -= 1
            if not self._ended:
                self._sessions.start_idle_timer(self)

    async def _serve(self, slot: RunningSlot, call: HostCall) -> HostReturn:
        async with slot.waiting():
            answer = await answer_call(self._functions, call.body)
        return HostReturn(call.number, answer)

    async def _ask(
        self,
        worker: WorkerHandle,
        message: Message,
        seconds: float,
        serve: Callable[[HostCall], Awaitable[HostReturn]] | None = None,
        *,
        first: bool = False,
    ) -> SessionReply | None:
        """Return the worker's answer; None if it gave none, which ends the session.

        first: whether the message is a first cell, which loses nothing if its worker dies with its zygote: the session
        goes on, for another try.
        """
        try:
            answer = await worker.ask(message, SessionReply, seconds, serve)
        except (EOFError, OSError, TimeoutError) as error:
            if first and not self._ended and not isinstance(error, TimeoutError):
                worker.kill()
                return None
            self.end("its worker did not answer" if isinstance(error, TimeoutError) else "its worker died")
            return None
        except asyncio.CancelledError:
            self.end("an operation of it was cancelled")
            raise
        self.memory = answer.memory
        if answer.fault:
            self.end(answer.lost)
        elif answer.lost and not self._checkpoints:
            self.end(answer.lost, by_own_code=True)
        elif answer.lost:
            self._lose(answer.lost + "; it can be rolled back", by_own_code=True)
        return answer


class Sessions:
    """Open sessions of a pool.

    running: concurrent cells. start: starts a worker with an open session, by its first cell. give_back: takes the
    worker of a closed one. paths: returns the workers' tier, and the folders from which they return files by absolute
    path.
    """

    def __init__(
        self,
        bounds: SessionBounds,
        *,
        running: int,
        start: Callable[[str, OpenSession], Awaitable[WorkerHandle]],
        give_back: Callable[[WorkerHandle], Awaitable[None]],
        paths: Callable[[], tuple[str, Sequence[str]]],
    ) -> None:
        self.start = start
        self.give_back = give_back
        self.paths = paths
        self.running = RunningCells(running)
        self._bounds = bounds
        self._memory = total_memory() // 2 if bounds.memory_mb is None else bounds.memory_mb << 20
        self._places = asyncio.Semaphore(bounds.open)
        self._open: dict[PoolSession, asyncio.TimerHandle | None] = {}  # the last used one is last

    def __len__(self) -> int:
        return len(self._open)

    async def open(
        self,
        limits: Limits,
        seed: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        opening: Program | None = None,
    ) -> PoolSession:
        """Open a session. Raises SandboxUnavailable, and ValueError for an invalid opening."""
        try:
            async with asyncio.timeout(self._bounds.wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise SandboxUnavailable(
                f"the sandbox has {counted(self._bounds.open, 'session')} at a time, and none was closed within "
                f"{self._bounds.wait_seconds:g} s: close some, or open the pool with more (sessions=SessionBounds(…))"
            ) from None
        try:
            session = PoolSession(limits, seed, self, functions or {}, opening)
        except ValueError:
            self._places.release()
            raise
        self._open[session] = None
        self.start_idle_timer(session)
        return session

    def stop_idle_timer(self, session: PoolSession) -> None:
        """Stop a session's idle timer, at the start of an operation."""
        timer = self._open.get(session)
        if timer is not None:
            timer.cancel()

    def start_idle_timer(self, session: PoolSession) -> None:
        """Start a session's idle timer, at the end of an operation."""
        self.stop_idle_timer(session)
        self._open.pop(session)
        seconds = self._bounds.idle_seconds
        timer = None
        if not session.busy:
            cause = f"evicted: idle for {seconds:g} s"
            timer = asyncio.get_running_loop().call_later(seconds, session.end, cause)
        self._open[session] = timer
        self._make_room(session)

    def free_place(self, session: PoolSession) -> None:
        """Free an ended session's place."""
        self.stop_idle_timer(session)
        if self._open.pop(session, self) is not self:
            self._places.release()

    def close(self) -> None:
        for session in list(self._open):
            session.end("the sandbox was closed")

    def _make_room(self, latest: PoolSession) -> None:
        """Evict sessions until all fit into memory, except the last used one."""
        total = sum(session.memory for session in self._open)
        for session in list(self._open):
            if total <= self._memory:
                return
            if session is not latest and not session.busy:
                total -= session.memory
                session.end(f"evicted: all sessions together took more than {self._memory >> 20} MiB")
