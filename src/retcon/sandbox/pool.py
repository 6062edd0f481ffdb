"""A pool of warm workers: the first furnishing of the sandbox. Linux only.

Each worker is a small Python process that forks a child for every call (`worker`, `child`, `isolate`). What holds
around a call depends on what the machine grants; `SandboxPool.tier` and `retcon doctor` name it:

- `namespaces`: no network, file system read-only but for a scratch tmpfs of 64 MiB that is emptied after each call,
  processes of its own, no capabilities; under root as the user `nobody`.
- `rlimits`: CPU, memory, file size, process count and output are limited and all processes of a call end with it, but
  the network is open and files are guarded by ordinary permissions alone. Started by root, calls run as `nobody`
  where that user can read Python; started by anyone else they run as that user, and could write that user's files or
  kill that user's processes, a worker among them.

What no tier contains yet: reading world-readable files of the host (of the starting user too, unless root started
it), kernel bugs (system calls are not filtered), the sum of memory over a call's processes (each is limited on its
own), timing side channels, System V IPC objects left to the same worker's later calls, and remains of earlier calls'
text in the worker's memory, which a call inherits and could search.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.folders import PoolFolder
from retcon.sandbox.handle import WorkerHandle
from retcon.sandbox.request import request
from retcon.sandbox.session import Sessions
from retcon.sandbox.types import Limits, Result, Session, Tier

BACKSTOP_SECONDS = 30.0  # beyond the wall limit, after which a worker that does not answer is given up


class SandboxPool:
    """`workers` processes that run calls; further calls wait their turn.

        async with SandboxPool(workers=2) as sandbox:
            result = await sandbox.run("print(1 + 1)")

    tier: None takes the best that the machine grants; one that is asked for and cannot be had is refused. Raises
    SandboxUnavailable on entry where workers cannot be started. A worker that dies is replaced at the next
    call; the call that it was running gets status `infrastructure`.

    sessions: that may be open at a time; `workers` bounds how many of their cells run. One more waits
    `session_wait_seconds` for a place. A session that is idle for `session_idle_seconds` is evicted; where all together
    take more than `session_memory_mb` (half of the machine's memory where None), those idle for the longest time are.
    """

    def __init__(
        self,
        workers: int = 2,
        limits: Limits | None = None,
        *,
        tier: Tier | None = None,
        sessions: int = 64,
        session_idle_seconds: float = 1800.0,
        session_memory_mb: int | None = None,
        session_wait_seconds: float = 60.0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"a pool of {workers} workers: it must be 1 or more")
        self.limits = limits or Limits()
        self._slots = [_Slot() for _ in range(workers)]
        self._free: asyncio.Queue[_Slot] | None = None
        self._folder: PoolFolder | None = None
        self._asked = tier
        self._tier: Tier | None = None
        self._started = 0
        self._sessions = Sessions(
            sessions,
            idle_seconds=session_idle_seconds,
            memory_mb=session_memory_mb,
            wait_seconds=session_wait_seconds,
            start=self._start_worker,
            turn=self._turn,
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the workers. Raises SandboxUnavailable, with nothing left running."""
        if self._free is not None:
            return
        if sys.platform != "linux":
            raise SandboxUnavailable(
                f"the sandbox needs Linux (fork, namespaces, /proc), and this is {sys.platform}: run it in a container"
            )
        self._folder = PoolFolder()
        self._free = asyncio.Queue()
        try:
            for slot in self._slots:
                slot.worker = await self._start_worker()
                self._free.put_nowait(slot)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self._free is None:
            return
        self._free = None
        self._sessions.close()
        for slot in self._slots:
            slot.drop()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    @property
    def tier(self) -> Tier:
        """What holds around every call. Raises SandboxUnavailable before the pool was started."""
        if self._tier is None:
            raise SandboxUnavailable("the sandbox was not started: use `async with SandboxPool(...)`")
        return self._tier

    @property
    def worker(self) -> WorkerHandle:
        """The first worker that lives. Raises SandboxUnavailable where there is none."""
        for slot in self._slots:
            if slot.worker is not None:
                return slot.worker
        raise SandboxUnavailable("no worker is running")

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        timeout: float | None = None,
        memory: int | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        echo: bool = True,
    ) -> Result:
        """See `Sandbox.run`. Cancelling it ends the call, and its worker is replaced."""
        limits = (limits or self.limits).with_(timeout, memory)
        message = request(code, stdin, limits, files, echo)
        async with self._turn() as slot:
            return await self._run_in(slot, message, limits.wall_seconds)

    async def session(self, *, limits: Limits | None = None) -> Session:
        """See `Sandbox.session`."""
        self._open_queue()
        return await self._sessions.open(limits or self.limits)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[_Slot]:
        """Wait until one more may run."""
        free = self._open_queue()
        slot = await free.get()
        try:
            yield slot
        finally:
            free.put_nowait(slot)

    def _open_queue(self) -> asyncio.Queue[_Slot]:
        if self._free is None:
            raise SandboxUnavailable("the sandbox is not open: use `async with SandboxPool(...)`")
        return self._free

    async def _run_in(self, slot: _Slot, message: dict[str, Any], wall_seconds: float) -> Result:
        self._open_queue()  # it may have closed while the call waited
        try:
            worker = slot.take() or await self._start_worker()
        except SandboxUnavailable as error:
            return Result("infrastructure", stderr=str(error), tier=self.tier)
        keep = False
        try:
            async with asyncio.timeout(wall_seconds + BACKSTOP_SECONDS):
                answer = await worker.ask(message)
            keep = not answer.pop("retire") and self._free is not None
            return Result(tier=self.tier, **answer)
        except (EOFError, OSError, TimeoutError) as error:
            reason = "it did not answer" if isinstance(error, TimeoutError) else "it died"
            return Result("infrastructure", stderr=f"sandbox worker {worker.pid}: {reason}", tier=self.tier)
        finally:
            slot.worker = worker
            if not keep:
                slot.drop()

    async def _start_worker(self) -> WorkerHandle:
        if self._folder is None:
            raise SandboxUnavailable("the sandbox pool is closed")
        self._started += 1
        scratch = self._folder.path / f"w{self._started}"
        scratch.mkdir(mode=0o711)
        worker = await WorkerHandle.start(scratch, self._asked or "")
        wanted, had = self._tier or self._asked, worker.tier
        if wanted not in (None, had):
            worker.kill()
            raise SandboxUnavailable(
                f"sandbox tier {wanted!r} cannot be had here, only {had!r}: allow user namespaces "
                "(sysctl user.max_user_namespaces, or the container's seccomp profile), or do not ask for a tier"
            )
        self._tier = had
        return worker


class _Slot:
    """A place for one worker; empty after the worker died, filled again by the next call."""

    def __init__(self) -> None:
        self.worker: WorkerHandle | None = None

    def take(self) -> WorkerHandle | None:
        if self.worker is not None and not self.worker.alive:
            self.drop()
        return self.worker

    def drop(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker = None
