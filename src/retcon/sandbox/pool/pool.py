"""A pool of warm workers, forked on demand from zygotes that have imported what calls need. Linux only.

What holds around a call depends on what the machine grants; `SandboxPool.tier` and `retcon doctor` name it, and
docs/sandbox/sandbox.md says what each tier contains and what it does not.
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
from retcon.sandbox.pool.profiles import Chooser, check_limits, find, with_packages
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

ATTEMPTS = 2  # of a call whose worker died: no call has an effect outside its worker


class SandboxPool(StartedSandbox):
    """Runs calls in up to `workers` processes at a time; further calls wait their turn.

        async with SandboxPool() as sandbox:
            result = await sandbox.run("print(1 + 1)")

    workers: calls and sessions at a time; None for `default_workers()`. tier: None takes the best that the machine
    grants; one that is asked for and is unavailable is refused. uids: where root starts the pool, each worker's
    calls run as one of these users, drawn at random; `users.FIRST_UID` and on where None. python: the interpreter
    whose packages calls can import, or the folder of its venv; this one where None. packages: to be preloaded besides
    numpy, sympy and scipy, as names or as a mapping from a profile's name to its modules; a session has all of them.
    warm: profiles whose zygotes start with the pool; others start with the first call that needs them. queue: calls
    that may wait for a worker; further ones wait in `run` with nothing prepared (`full` tells beforehand).

    sessions: how many are kept, and for how long, whatever `workers` is; of their cells `workers` run at a time.

    Raises ValueError for a bad argument, SandboxUnavailable on entry where workers cannot be started. A worker or
    zygote that dies is replaced; a call that it takes with it is run once more and is then `infrastructure`.
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
        profiles = with_packages(packages)
        self._python = find_python(python)
        self._packages = [module for name in packages for module in find(name, profiles).modules]
        check_limits([find(name, profiles) for name in packages], self.limits)
        self._warm = [find(name, profiles).name for name in warm]
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
        """Raises SandboxUnavailable, with nothing left running."""
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
        """What holds around every call. Raises SandboxUnavailable before the pool was started."""
        if self._fleet.tier is None:
            raise SandboxUnavailable("the sandbox was not started: use `async with SandboxPool(...)`")
        return self._fleet.tier

    @property
    def worker(self) -> WorkerHandle:
        """A worker that lives. Raises SandboxUnavailable where there is none."""
        for worker in self._fleet.workers:
            if worker.alive:
                return worker
        raise SandboxUnavailable("no worker is running")

    @property
    def fleet(self) -> Fleet:
        """The workers, for those who look after them."""
        return self._fleet

    @property
    def faults(self) -> Mapping[str, str]:
        """By profile, why its packages could not be preloaded; its calls import them themselves."""
        return self._fleet.faults

    @property
    def full(self) -> bool:
        """Whether a further call would have to wait for a place in the queue."""
        return self._room.locked()

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """See `Sandbox.run`. The clocks start when the call does, not while it waits. Cancelling ends the call."""
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
    ) -> PoolSession:
        """See `Sandbox.session`."""
        self._refuse_other_loops()
        self._fleet.check_open()
        check_seed(seed)
        check_functions(functions or {})
        session = await self._sessions.open(limits or self.limits, seed, functions)
        try:
            self._fleet.check_open()  # it may have waited for a place until the pool was closed
        except SandboxUnavailable as closed:
            session.end(str(closed))
            raise
        return session

    def _refuse_other_loops(self) -> None:
        """Raises SandboxUnavailable in another event loop than that which the pool was started in, as of a thread."""
        if self._loop not in (None, asyncio.get_running_loop()):
            raise SandboxUnavailable(
                "the pool was started in another event loop, which its workers belong to: start one in this loop, or "
                "hand calls over with asyncio.run_coroutine_threadsafe"
            )

    def _paths(self) -> tuple[str, Sequence[str]]:
        return self._fleet.tier or "", self._fleet.folders

    async def _session_worker(self, code: str, opening: OpenSession) -> WorkerHandle:
        """For a session whose first cell that is: what the later ones import may be any of the packages."""
        packages = {module.partition(".")[0] for module in self._packages}
        return await self._fleet.extra(self._choose(code, self._fleet.zygotes, packages), opening)

    async def _run(self, profile: str, message: RunCall, latest: float | None) -> Result:
        """latest: when it must have its first worker, on the clock of the event loop. Raises SandboxBusy where it has
        none."""
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
            latest = None  # it has started; if its worker dies, it is run once more whatever that takes
            try:
                result = await self._run_in(worker, message)
            except TimeoutError:  # what did not answer in a call's whole time is not waited for once more
                return Result("infrastructure", stderr=f"sandbox worker {worker.pid}: no answer", tier=self.tier)
            except (EOFError, OSError):
                fault, tier = f"sandbox worker {worker.pid}: it died", self.tier
                continue
            if result.status != "infrastructure":
                return result
            fault, tier = result.stderr.rstrip(), tier or result.tier
        return Result("infrastructure", stderr=f"{fault}; so it was the time before", tier=tier)

    async def _run_in(self, worker: WorkerHandle, message: RunCall) -> Result:
        """Raises EOFError or OSError where the worker died, TimeoutError where it did not answer."""
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
    """Calls at a time where nobody said how many: four to a core, 16 at least and 64 at most, so that endless loops
    leave room for short calls, but no more than fit into half of the memory if each takes all that it may. In any
    case one to a core, since a core that waits is no use and hardly any call takes all that it may."""
    cores = usable_cores()
    fit = total_memory() // 2 // (limits.memory_mb << 20)
    return max(cores, min(64, max(16, 4 * cores), fit))
