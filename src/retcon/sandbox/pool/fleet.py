"""Scheduler of a pool's workers: queues, forks, eviction and failures.

At most `size` exist at a time, busy, idle or being forked. A worker serves calls of its zygote's profile; when all
places are taken, an idle one of another profile is ended. If the machine refuses one more, no call fails while others
serve: the present ones count as all places, until the next try.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
import warnings
from collections import Counter, OrderedDict
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from retcon.core.errors import SandboxUnavailable, SandboxWarning
from retcon.core.machine import usable_cores
from retcon.sandbox.jail.confine.root import SIZE_MB
from retcon.sandbox.jail.confine.users import closed_to_others
from retcon.sandbox.jail.messages import CloseSession, OpenSession, SessionClosed, SessionReply
from retcon.sandbox.jail.scratch import LOCK, remove, remove_abandoned
from retcon.sandbox.pool.handles import WorkerHandle, ZygoteHandle
from retcon.sandbox.pool.profiles import BARE, Chooser
from retcon.sandbox.types import Tier

MEMORY = Path("/dev/shm")  # on a disk, folders take longer than the rest of a call
PREFIX = "retcon-sandbox-"


class PoolFolder:
    """A new folder, locked until `remove` or the end of the process.

    home: where it is made; None: in memory, or among the temporary files if only these have `room` bytes for the files
    of calls in weaker tiers (a container may have 64 MiB of shared memory).
    """

    def __init__(self, home: Path | None = None, *, room: int = 0) -> None:
        homes = [home or MEMORY]
        if home is None:
            with contextlib.suppress(FileNotFoundError):  # some containers are read-only otherwise
                homes.append(Path(tempfile.gettempdir()))
        for one in homes:
            _sweep(one)
        writable = [one for one in homes if os.access(one, os.W_OK)] or homes
        chosen = next((one for one in writable if _free(one) >= room and _is_open(one)), writable[0])
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=chosen))
        self.path.chmod(0o711)  # a child of another user must reach its scratch folder
        unlocked = self.path / f"{LOCK}.new"
        self._lock = os.open(unlocked, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / LOCK)  # visible only once it is locked

    def remove(self) -> None:
        remove(str(self.path))
        os.close(self._lock)


def _sweep(home: Path) -> None:
    """Remove this user's folders of dead pools."""
    for folder in home.glob(f"{PREFIX}*"):
        remove_abandoned(str(folder))


def _free(folder: Path) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def _is_open(folder: Path) -> bool:
    """Whether calls can reach its content, also as other users, if root starts them."""
    return os.geteuid() != 0 or closed_to_others(str(folder)) is None


T = TypeVar("T")
PATIENCE = 32  # times that the oldest call may be overtaken: about the cost of changing a worker's profile


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """A place in the queue. number: rises with arrival. overtaken: how many later calls were served before it."""

    profile: str
    number: int
    item: T
    overtaken: int = field(default=0)


class WaitQueue(Generic[T]):
    """Queues by profile. Operations take time in the number of profiles, not of tickets."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self._queues: dict[str, OrderedDict[int, Ticket[T]]] = {}
        self._patience = patience
        self._count = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def count(self, profile: str) -> int:
        return len(self._queues.get(profile, ()))

    def push(self, profile: str, item: T) -> Ticket[T]:
        self._count += 1
        ticket = Ticket(profile, self._count, item)
        self._queues.setdefault(profile, OrderedDict())[ticket.number] = ticket
        return ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """Remove a ticket, if it still waits."""
        if ticket.profile in self._queues:
            self._queues[ticket.profile].pop(ticket.number, None)

    def next(self, profile: str, ready: Collection[str]) -> str | None:
        """Return the profile to serve when a worker of `profile` is free.

        `profile` itself, unless it has no waiting call or the oldest call of those in `ready` was overtaken too often;
        None if no call of these waits.
        """
        oldest = self._oldest(ready)
        if oldest is None or not self.count(profile) or oldest.profile == profile:
            return oldest.profile if oldest else None
        if oldest.overtaken >= self._patience:
            return oldest.profile
        oldest.overtaken += 1
        return profile

    def oldest(self, ready: Collection[str]) -> str | None:
        """Return the profile of the oldest call among `ready`."""
        oldest = self._oldest(ready)
        return oldest.profile if oldest else None

    def profiles(self) -> list[str]:
        """Return the profiles of waiting calls."""
        return [name for name, queue in self._queues.items() if queue]

    def pop(self, profile: str) -> T | None:
        queue = self._queues.get(profile)
        return queue.popitem(last=False)[1].item if queue else None

    def move(self, profile: str, to: str) -> None:
        """Move a profile's calls into another's queue, in order of arrival."""
        tickets = [*self._queues.pop(profile, {}).values(), *self._queues.pop(to, {}).values()]
        for ticket in tickets:
            ticket.profile = to
        self._queues[to] = OrderedDict((t.number, t) for t in sorted(tickets, key=lambda t: t.number))

    def clear(self) -> list[T]:
        """Take all out, in order of arrival."""
        tickets = [ticket for queue in self._queues.values() for ticket in queue.values()]
        self._queues.clear()
        return [ticket.item for ticket in sorted(tickets, key=lambda t: t.number)]

    def _oldest(self, ready: Collection[str]) -> Ticket[T] | None:
        first = [next(iter(queue.values())) for name, queue in self._queues.items() if queue and name in ready]
        return min(first, key=lambda ticket: ticket.number, default=None)


FORKS = max(2, usable_cores())  # concurrent forks of a profile: more at once would all take longer
ATTEMPTS = 2  # if a worker dies
ZYGOTE_DEATHS = 3  # in a row, without a worker, after which a profile is given up
OPEN_SECONDS = 60.0
CLOSE_SECONDS = 10.0  # for a session's processes to end and its files to go
AGAIN_SECONDS = 1.0  # until the next try on a machine that refused a worker


async def _opened(worker: WorkerHandle, opening: OpenSession) -> WorkerHandle:
    """Open a session in a worker; kill it if that fails. Raises EOFError or OSError."""
    try:
        await worker.ask(opening, SessionReply, OPEN_SECONDS)
    except BaseException:
        worker.kill()
        raise
    return worker


def _pop_alive(free: list[WorkerHandle]) -> WorkerHandle | None:
    """Take the last living worker."""
    while free:
        worker = free.pop()
        if worker.alive:
            return worker
        worker.kill()
    return None


class Fleet:
    """Workers and zygotes of a pool, between `open` and `close`.

    spares: most workers of closed sessions that are kept for later ones. tier: protection around the workers, None
    before the first one is ready. folders: where they take files by absolute path. faults: why profiles are not
    preloaded, by name.
    """

    def __init__(
        self, size: int, choose: Chooser, python: str, asked: Tier | None, uids: range | None = None, spares: int = 0
    ) -> None:
        self.size = size
        self._spares = spares
        self._uids = uids
        self.tier: Tier | None = None
        self.folders: tuple[str, ...] = ()
        self.faults: dict[str, str] = {}
        self._choose = choose
        self._python = python
        self._asked = asked
        self._folder: PoolFolder | None = None
        self._made = 0
        self._waiting: WaitQueue[asyncio.Future[WorkerHandle]] = WaitQueue()
        self._busy: set[WorkerHandle] = set()
        self._idle: dict[str, list[WorkerHandle]] = {}
        self._spare: dict[str, list[WorkerHandle]] = {}  # beyond `size`, of closed sessions
        self._forking: Counter[str] = Counter()
        self._places = size  # fewer while the machine refuses more
        self._retry_timer: asyncio.TimerHandle | None = None  # until they are `size` again
        self._zygotes: dict[str, ZygoteHandle] = {}
        self._starting: dict[str, asyncio.Event] = {}  # set once a zygote is ready or has failed
        self._deaths: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._folder is not None

    def check_open(self) -> None:
        """Raise SandboxUnavailable if closed."""
        if self._folder is None:
            raise _closed()

    @property
    def folder(self) -> Path:
        """The host's folder for logs, and for scratch without tmpfs. Raises SandboxUnavailable if closed."""
        if self._folder is None:
            raise _closed()
        return self._folder.path

    @property
    def workers(self) -> list[WorkerHandle]:
        kept = (worker for free in (self._idle, self._spare) for workers in free.values() for worker in workers)
        return [*self._busy, *kept]

    @property
    def zygotes(self) -> dict[str, int]:
        """Process ids of ready zygotes, by profile."""
        return {name: zygote.pid for name, zygote in self._zygotes.items() if zygote.alive}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._busy)

    async def open(self, warm: Iterable[str]) -> None:
        """Start the bare zygote, those of `warm`, and a worker.

        Raises SandboxUnavailable, with nothing left running.
        """
        self._folder = PoolFolder(room=self.size * SIZE_MB << 20)
        try:
            async with asyncio.TaskGroup() as group:
                for name in dict.fromkeys((BARE.name, *warm)):
                    group.create_task(self._start_zygote(name))
            worker = await self.take(BARE.name)
            self.give(worker, keep=True)
            if worker.tier == "rlimits":
                warnings.warn(
                    f"sandbox tier {worker.tier!r} limits calls and does not contain them. Open to them: "
                    + "; ".join(worker.facts.unprotected),
                    SandboxWarning,
                    stacklevel=2,
                )
        except BaseExceptionGroup as failed:
            await self.close()
            raise failed.exceptions[0] from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End all workers and zygotes and wait for that, also if cancelled.

        Waiting calls get SandboxUnavailable.
        """
        if self._folder is None:
            return
        folder, self._folder = self._folder, None
        try:
            for future in self._waiting.clear():
                if not future.done():
                    future.set_exception(_closed())
            if self._retry_timer is not None:
                self._retry_timer.cancel()
                self._retry_timer, self._places = None, self.size
            for task in self._tasks:
                task.cancel()
            for worker in self.workers:
                worker.kill()
            for zygote in self._zygotes.values():
                zygote.stop()
            await asyncio.gather(
                *(zygote.close() for zygote in self._zygotes.values()), *self._tasks, return_exceptions=True
            )
        finally:  # also if cancelled before any of them has begun
            for worker in self.workers:
                worker.kill()
            for zygote in self._zygotes.values():
                zygote.reap()
            self._busy.clear()
            self._idle.clear()
            self._spare.clear()
            self._zygotes.clear()
            for started in self._starting.values():  # of tasks that were cancelled before they began
                started.set()
            self._starting.clear()
            folder.remove()

    async def take(self, profile: str) -> WorkerHandle:
        """Take a worker of a profile, or `bare` if that fails.

        The caller gives it back. Raises SandboxUnavailable if none can be started, or the fleet is closed.
        """
        if self._folder is None:
            raise _closed()
        profile = self._profile_or_bare(profile)
        if not self._waiting.count(profile) and (worker := _pop_alive(self._idle.get(profile, []))) is not None:
            self._busy.add(worker)
            return worker
        future: asyncio.Future[WorkerHandle] = asyncio.get_running_loop().create_future()
        ticket = self._waiting.push(profile, future)
        self._grow()
        try:
            return await future
        except asyncio.CancelledError:
            self._waiting.remove(ticket)
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give(future.result(), keep=True)
            raise

    async def extra(self, profile: str, opening: OpenSession) -> WorkerHandle:
        """Start a worker beyond `size` with an open session. Raises SandboxUnavailable.

        The caller kills it or gives it back. If its zygote dies, or it dies before it is ready, another one is forked.
        """
        while (spare := _pop_alive(self._spare.get(self._profile_or_bare(profile), []))) is not None:
            with contextlib.suppress(EOFError, OSError):  # it died with its zygote, unnoticed so far
                return await _opened(spare, opening)
        for _ in range(ATTEMPTS):
            try:
                return await _opened(await self._start_worker(await self._zygote(profile)), opening)
            except (SandboxUnavailable, EOFError, OSError) as error:  # OSError: such as no free descriptors
                fault = SandboxUnavailable(str(error) or "a sandbox worker died when its session was opened")
        raise fault

    async def give_back(self, worker: WorkerHandle) -> None:
        """End a session; keep its worker for the next, or kill it."""
        keep = False
        try:
            closed = await worker.ask(CloseSession(), SessionClosed, CLOSE_SECONDS)
            keep = not closed.retire and self._folder is not None and worker.profile in self._ready()
        except (EOFError, OSError):  # also TimeoutError
            pass
        finally:
            if keep and sum(map(len, self._spare.values())) < self._spares:
                self._spare.setdefault(worker.profile, []).append(worker)
            else:
                worker.kill()

    async def _zygote(self, profile: str) -> ZygoteHandle:
        """Return the zygote of a profile, started if needed, or of `bare` if it cannot be started.

        Raises SandboxUnavailable if both fail, or the fleet is closed.
        """
        while self._folder is not None:
            profile = self._profile_or_bare(profile)
            zygote = self._zygotes.get(profile)
            if zygote is not None and zygote.alive:
                return zygote
            await self._zygote_started(profile).wait()
            if profile == BARE.name and profile not in self._ready() and profile in self.faults:
                raise SandboxUnavailable(self.faults[profile])
        raise _closed()

    def _profile_or_bare(self, profile: str) -> str:
        """Return `bare` for a profile that was given up: a call may have chosen it before, or run again."""
        return BARE.name if profile in self.faults and profile not in self._ready() else profile

    def _zygote_started(self, profile: str) -> asyncio.Event:
        """Start a profile's zygote, unless it is starting; the event is set once it is ready or has failed."""
        if profile not in self._starting:
            self._starting[profile] = asyncio.Event()
            self._spawn(profile, self._start_profile(profile))
        return self._starting[profile]

    def give(self, worker: WorkerHandle, *, keep: bool) -> None:
        """Give a worker back. keep: whether it may serve again."""
        self._busy.discard(worker)
        # Workers die with their zygote, whose death may be noticed first.
        if not keep or not worker.alive or self._folder is None or worker.profile not in self._ready():
            worker.kill()
        else:
            self._place(worker)
        self._grow()

    def _place(self, worker: WorkerHandle) -> None:
        """Let a free worker serve the next call, make room for another profile, or idle."""
        turn = self._waiting.next(worker.profile, self._ready())
        if turn is None:
            self._idle.setdefault(worker.profile, []).append(worker)
        elif turn != worker.profile:
            worker.kill()  # _grow forks one of the other profile in its place
        else:
            while (future := self._waiting.pop(turn)) is not None:
                if not future.done():
                    self._busy.add(worker)
                    future.set_result(worker)
                    return
            self._place(worker)

    def _grow(self) -> None:
        """Fork workers for waiting calls, as many as there is room for, and start their zygotes."""
        if self._folder is None:
            return
        for profile in self._waiting.profiles():
            if profile not in self._ready():
                self._zygote_started(profile)
        open_to = self._ready()
        while (turn := self._waiting.oldest(open_to)) is not None:
            wanted = min(self._waiting.count(turn), FORKS) - self._forking[turn]
            if wanted <= 0 or not self._room_for(turn):
                open_to.discard(turn)
                continue
            self._forking[turn] += 1
            self._spawn(turn, self._fork(self._zygotes[turn]))

    def _room_for(self, profile: str) -> bool:
        """Whether there is room for one more worker; ends an idle one if needed."""
        if self._count() < self._places:
            return True
        for name, idle in self._idle.items():
            if idle and name != profile:
                idle.pop(0).kill()  # the one that has been idle for the longest time
                return True
        return False

    def _count(self) -> int:
        """Count the workers, including those being forked."""
        return len(self._busy) + sum(map(len, self._idle.values())) + self._forking.total()

    def _ready(self) -> set[str]:
        return {name for name, zygote in self._zygotes.items() if zygote.alive}

    def _spawn(self, profile: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, profile))

    def _on_task_done(self, profile: str, task: asyncio.Task[None]) -> None:
        """Fail waiting calls after an unexpected error, so that they do not wait for ever."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            message = f"the sandbox's profile {profile!r} failed: {type(error).__name__}: {error}"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
            self._fail(profile, message, everyone=True)
            self._grow()

    async def _start_profile(self, profile: str) -> None:
        """Start the zygote of a profile; if that fails, its calls move to `bare`."""
        try:
            if self._deaths[profile] >= ZYGOTE_DEATHS:
                self._deaths[profile] = 0
                raise SandboxUnavailable(
                    f"the zygote of sandbox profile {profile!r} died {ZYGOTE_DEATHS} times in a row"
                )
            self._deaths[profile] += 1
            await self._start_zygote(profile)
            self.faults.pop(profile, None)
        except (SandboxUnavailable, OSError) as error:
            self.faults[profile] = str(error)
            if profile == BARE.name:
                self._fail(profile, str(error), everyone=True)
            else:
                self._choose.drop(profile)
                self._waiting.move(profile, BARE.name)
                while (
                    self._waiting.count(BARE.name) and (worker := _pop_alive(self._idle.get(BARE.name, []))) is not None
                ):
                    self._place(worker)
        finally:
            if (started := self._starting.pop(profile, None)) is not None:
                started.set()
        self._grow()

    async def _start_zygote(self, profile: str) -> None:
        folder = self.folder
        self._made += 1
        old = self._zygotes.pop(profile, None)
        if old is not None:
            for worker in (
                *self._idle.pop(profile, []),
                *self._spare.pop(profile, []),
            ):  # they died with it, and would take others' places
                worker.kill()
            await old.close()
        zygote = await ZygoteHandle.start(
            self._choose.profiles[profile], self._python, folder, folder / f"z{self._made}.log"
        )
        if self._folder is None:  # closed meanwhile
            await zygote.close()
            raise _closed()
        self._zygotes[profile] = zygote
        self._choose.learn(profile, zygote.packages)

    async def _fork(self, zygote: ZygoteHandle) -> None:
        """Fork one more worker for a profile's waiting calls."""
        profile = zygote.profile
        try:
            worker = await self._start_worker(zygote)
        except (SandboxUnavailable, OSError) as error:
            if zygote.alive:  # the machine's fault
                self._on_fork_refused(profile, str(error))
        else:
            self._place(worker)
        finally:
            self._forking[profile] -= 1
        self._grow()

    def _on_fork_refused(self, profile: str, message: str) -> None:
        """Lower the number of places after a refused fork, which still counts.

        Waiting calls get another worker in time; without any, one call fails rather than wait for ever."""
        others = self._count() - 1
        if not others:
            self._fail(profile, message, everyone=False)
            return
        self._places = others
        if self._retry_timer is None:
            self._retry_timer = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._retry_size)

    def _retry_size(self) -> None:
        self._retry_timer, self._places = None, self.size
        self._grow()

    async def _start_worker(self, zygote: ZygoteHandle) -> WorkerHandle:
        self._made += 1
        worker = await zygote.fork(self.folder / f"w{self._made}", self.tier or self._asked or "", self._uids)
        self.tier, self.folders = worker.tier, tuple(worker.facts.folders)
        self._deaths[zygote.profile] = 0
        return worker

    def _fail(self, profile: str, message: str, *, everyone: bool) -> None:
        while (future := self._waiting.pop(profile)) is not None:
            if not future.done():
                future.set_exception(SandboxUnavailable(message))
                if not everyone:
                    return


def _closed() -> SandboxUnavailable:
    return SandboxUnavailable("the sandbox is not open: use `async with SandboxPool(...)`")
