"""Pool of warm workers, forked on demand from zygotes with preloaded packages.

Linux only. The protection around a call depends on the machine; `SandboxPool.tier` and `retcon doctor` name it, and
docs/sandbox/sandbox.md describes each tier.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

from retcon.core.errors import SandboxBusy, SandboxUnavailable
from retcon.core.machine import total_memory, usable_cores
from retcon.sandbox.jail.messages import CallEnded, OpenSession, RunCall
from retcon.sandbox.pool.fleet import Fleet
from retcon.sandbox.pool.handles import BACKSTOP_SECONDS, WorkerHandle, check_python, find_python
from retcon.sandbox.pool.profiles import Chooser, build_profiles, check_limits, find_profile
from retcon.sandbox.pool.session import PoolSession, Sessions, as_result, call
from retcon.sandbox.types import (
    HostFunction,
    Limits,
    Program,
    ProgramOptions,
    Result,
    SessionBounds,
    StartedSandbox,
    Tier,
    as_program,
    check_functions,
    check_seed,
)

ATTEMPTS = 2  # of a call whose worker died, as calls have no effects outside their worker


class SandboxPool(StartedSandbox):
    """Sandbox of up to `workers` processes; further calls wait. Implements `Sandbox`.

        async with SandboxPool() as sandbox:
            result = await sandbox.run("print(1 + 1)")

    workers: concurrent calls and sessions; None: `default_workers()`. tier: None: the machine's best; an unavailable
    one is refused. uids: if root starts the pool, each worker's calls run as a random one of these users; None:
    `users.FIRST_UID` and on. python: interpreter whose packages calls can import, or the folder of its venv; None: this
    one. packages: preloaded besides numpy, sympy and scipy, as names or as a mapping from a profile's name to its
    modules; a session has all of them. warm: profiles whose zygotes start with the pool; others start with the first
    call that needs them. queue: calls that may wait for a worker; further ones wait in `run` (`full` tests for that).

    sessions: number and idle time, whatever `workers` is; of their cells `workers` run at a time.

    Raises ValueError for a bad argument, SandboxUnavailable on entry if workers cannot be started. A worker or zygote
    that dies is replaced; its call runs once more and is then `infrastructure`.
    """

    def __init__(
        self,
        workers: int | None = None,
        limits: Limits | None = None,
        *,
        tier: Tier | None = None,
        uids: range | None = None,
        python: str | None = None,
        packages: Sequence[str] | Mapping[str, Sequence[str]] = (),
        warm: Iterable[str] = (),
        queue: int = 100_000,
        sessions: SessionBounds | None = None,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"a pool of {workers} workers: it must be 1 or more")
        if uids is not None and (not uids or uids.step != 1 or uids.start < 1):
            raise ValueError(f"uids={uids}: give a range of user ids above 0, such as range(100000, 165536)")
        if queue < 1:
            raise ValueError(f"a queue of {queue} calls: it must be 1 or more")
        self.limits = limits or Limits()
        profiles = build_profiles(packages)
        self._python = find_python(python)
        self._packages = [module for name in packages for module in find_profile(name, profiles).modules]
        check_limits([find_profile(name, profiles) for name in packages], self.limits)
        self._warm = [find_profile(name, profiles).name for name in warm]
        self._choose = Chooser(profiles)
        bounds = sessions or SessionBounds()
        size = workers or default_workers(self.limits)
        self._fleet = Fleet(size, self._choose, self._python, tier, uids, spares=bounds.open)
        self._sessions = Sessions(
            bounds,
            running=self._fleet.size,
            start=self._session_worker,
            give_back=self._fleet.give_back,
            paths=self._paths,
        )
        self._room = asyncio.Semaphore(queue + self._fleet.size)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Start the pool. Raises SandboxUnavailable, with nothing left running."""
        if self._fleet.is_open:
            return
        if sys.platform != "linux":
            raise SandboxUnavailable(
                f"the sandbox needs Linux (fork, namespaces, /proc), and this is {sys.platform}: run it in a container"
            )
        await check_python(self._python, self._packages)
        self._loop = asyncio.get_running_loop()
        await self._fleet.open(self._warm)

    async def close(self) -> None:
        self._sessions.close()
        await self._fleet.close()

    @property
    def tier(self) -> Tier:
        """Protection around every call. Raises SandboxUnavailable before the pool was started."""
        if self._fleet.tier is None:
            raise SandboxUnavailable("the sandbox was not started: use `async with SandboxPool(...)`")
        return self._fleet.tier

    @property
    def worker(self) -> WorkerHandle:
        """A living worker. Raises SandboxUnavailable without one."""
        for worker in self._fleet.workers:
            if worker.alive:
                return worker
        raise SandboxUnavailable("no worker is running")

    @property
    def fleet(self) -> Fleet:
        """The workers, for monitoring."""
        return self._fleet

    @property
    def faults(self) -> Mapping[str, str]:
        """Why packages could not be preloaded, by profile; its calls import them themselves."""
        return self._fleet.faults

    @property
    def full(self) -> bool:
        """Whether the queue is full, so that another call would wait."""
        return self._room.locked()

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a program; see `Sandbox.run`. Its clocks start when it does. Cancelling ends the call."""
        self._refuse_other_loops()
        asked = as_program(program, options)
        limits = asked.limits_within(self.limits)
        latest = None if asked.wait is None else asyncio.get_running_loop().time() + asked.wait
        try:
            async with asyncio.timeout_at(latest):
                await self._room.acquire()
        except TimeoutError:
            raise _busy() from None
        try:
            message = call(asked, limits, *self._paths())
            profile = self._choose(asked.code, self._fleet.zygotes)
            return await self._run(profile, message, latest)
        finally:
            self._room.release()

    async def session(
        self,
        *,
        limits: Limits | None = None,
        seed: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        opening: Program | None = None,
    ) -> PoolSession:
        """Open a session; see `Sandbox.session`."""
        self._refuse_other_loops()
        self._fleet.check_open()
        check_seed(seed)
        check_functions(functions or {})
        session = await self._sessions.open(limits or self.limits, seed, functions, opening)
        try:
            self._fleet.check_open()  # it may have waited for a place until the pool was closed
        except SandboxUnavailable as closed:
            session.end(str(closed))
            raise
        return session

    def _refuse_other_loops(self) -> None:
        """Raise SandboxUnavailable in another event loop than the pool's, such as another thread's."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise SandboxUnavailable(
                "the pool was started in another event loop, which its workers belong to: start one in this loop, or "
                "hand calls over with asyncio.run_coroutine_threadsafe"
            )

    def _paths(self) -> tuple[str, Sequence[str]]:
        return self._fleet.tier or "", self._fleet.folders

    async def _session_worker(self, code: str, opening: OpenSession) -> WorkerHandle:
        """Start a worker for a session's first cell; later ones may import any of the packages."""
        packages = {module.partition(".")[0] for module in self._packages}
        return await self._fleet.extra(self._choose(code, self._fleet.zygotes, packages), opening)

    async def _run(self, profile: str, message: RunCall, latest: float | None) -> Result:
        """Run a call. latest: when it must have its first worker, on the event loop's clock, else SandboxBusy is
        raised."""
        fault, tier = "", None
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout_at(latest):
                    worker = await self._fleet.take(profile)
            except TimeoutError:
                raise _busy() from None
            except SandboxUnavailable as error:
                if not fault and not self._fleet.is_open:
                    raise
                return Result("infrastructure", stderr=fault or str(error), tier=tier)
            latest = None  # it has started; if its worker dies, it runs again without this limit
            try:
                result = await self._run_in(worker, message)
            except TimeoutError:  # a silent worker is not tried again
                return Result("infrastructure", stderr=f"sandbox worker {worker.pid}: no answer", tier=self.tier)
            except (EOFError, OSError):
                fault, tier = f"sandbox worker {worker.pid}: it died", self.tier
                continue
            if result.status != "infrastructure":
                return result
            fault, tier = result.stderr.rstrip(), tier or result.tier
        return Result("infrastructure", stderr=f"{fault}; likewise at the first try", tier=tier)

    async def _run_in(self, worker: WorkerHandle, message: RunCall) -> Result:
        """Run a call in a worker. Raises EOFError or OSError if it died, TimeoutError if it did not answer."""
        keep = False
        try:
            answer = await worker.ask(message, CallEnded, message.limits.wall_seconds + BACKSTOP_SECONDS)
            keep = not answer.retire
            return as_result(answer.outcome)
        finally:
            self._fleet.give(worker, keep=keep)


def _busy() -> SandboxBusy:
    return SandboxBusy("no worker was free in the time that the call may wait: try again later")


def default_workers(limits: Limits) -> int:
    """Return the default number of concurrent calls.

    Four per core, from 16 to 64, so that endless loops leave room for short calls, but no more than fit into half of
    the memory if each takes its limit. At least one per core, since hardly any call takes its limit."""
    cores = usable_cores()
    fit = total_memory() // 2 // (limits.memory_mb << 20)
    return max(cores, min(64, max(16, 4 * cores), fit))
