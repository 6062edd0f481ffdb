"""The processes of a call and what they use, from /proc. Standard library only: the workers import it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Container, Iterator

_PAGE = resource.getpagesize()
_KILLS_AGE = 1.0  # seconds after which the machine's count is read again before a call


def read(proc: int, path: str) -> bytes:
    """A file beneath the descriptor of a /proc. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def open_own(proc: int) -> int:
    """A descriptor to be given to `own`, by which this process alone is measured, in its forks too."""
    return os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)


def own(statm: int) -> tuple[int, int]:
    """(address space, resident) of the process that opened `statm`, in bytes."""
    return _parsed(os.pread(statm, 256, 0))


def resident(proc: int, pid: int | str) -> int:
    """Bytes of a process that are in memory, 0 where it is gone.

    A process whose first thread has ended reads as empty although the others go on with its memory: they are asked.
    """
    size, held = _sizes(proc, f"{pid}/statm")
    if size:
        return held
    try:
        threads = listing(proc, f"{pid}/task")
    except OSError:
        return 0
    return max((_sizes(proc, f"{pid}/task/{thread}/statm")[1] for thread in threads), default=0)


def _sizes(proc: int, path: str) -> tuple[int, int]:
    """(address space, resident) in bytes, as a file `statm` has them."""
    try:
        return _parsed(read(proc, path))
    except (OSError, ValueError):
        return 0, 0


def _parsed(statm: bytes) -> tuple[int, int]:
    size, held, _ = statm.split(None, 2)
    return int(size) * _PAGE, int(held) * _PAGE


def children(proc: int, pid: int | None = None) -> list[int]:
    """The child processes of `pid`, of this process where None, as numbered in `proc`. [] where it is gone.

    This process is taken to have one thread.
    """
    try:
        if pid is None:
            own = os.readlink("self", dir_fd=proc)
            return [int(child) for child in read(proc, f"{own}/task/{own}/children").split()]
        found = []
        for thread in listing(proc, f"{pid}/task"):
            found += [int(child) for child in read(proc, f"{pid}/task/{thread}/children").split()]
        return found
    except OSError:
        return []


def held(proc: int, baseline: int, apart: Container[int] = ()) -> list[int]:
    """Bytes in memory that each descendant of this process holds beyond `baseline`.

    apart: children, as numbered in `proc`, that do not count. Memory that a fork shares counts for each process that
    has it: what they could make of it is counted.
    """
    return [max(resident(proc, pid) - baseline, 0) for pid, _ in _descendants(proc, apart)]


def lent(proc: int, baseline: int, apart: Container[int] = ()) -> int:
    """How much of what `held` finds is the memory of a process's parent, in which it runs, so that it counts twice.

    A process does from vfork, by which `subprocess` starts programs, until it is another program; the thread that asked
    for it waits in state D meanwhile. /proc does not say whose memory a process has. So a child as large as its parent,
    which has such a thread, is taken for one. A fork can be made to look like that (reading from a disk is state D as
    well): therefore one process at most, the largest, is, and the caller believes it for a bounded time.
    """
    most, waits = 0, {}
    for pid, parent in _descendants(proc, apart):
        size, _ = _sizes(proc, f"{pid}/statm")
        if parent is None or not size or size != _sizes(proc, f"{parent}/statm")[0]:
            continue
        if parent not in waits:
            waits[parent] = _has_waiting_thread(proc, parent)
        if waits[parent]:
            most = max(most, resident(proc, pid) - baseline)
    return most


def _descendants(proc: int, apart: Container[int]) -> Iterator[tuple[int, int | None]]:
    """(process, its parent) of those of this process, which stands as None. apart: as for `held`."""
    rest: list[tuple[int, int | None]] = [(pid, None) for pid in children(proc) if pid not in apart]
    while rest:
        found = rest.pop()
        yield found
        rest += [(pid, found[0]) for pid in children(proc, found[0])]


def _has_waiting_thread(proc: int, pid: int) -> bool:
    """Whether one of its threads is in state D."""
    try:
        return any(
            read(proc, f"{pid}/task/{thread}/stat").rpartition(b")")[2].split(None, 1)[0] == b"D"
            for thread in listing(proc, f"{pid}/task")
        )
    except OSError:
        return False


def listing(proc: int, path: str) -> list[str]:
    """The names in a folder below `proc`, a descriptor of /proc."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


class MachineKills:
    """How many processes the kernel has ended on this machine because it, or a container's cgroup, was out of memory.

    A process is not told who sent it SIGKILL. This count is the only sign that it was not itself, and it cannot raise
    it while it keeps to its own limits.
    """

    def __init__(self, vmstat: int = -1) -> None:
        """vmstat: a descriptor of the machine's /proc/vmstat, -1 where it cannot be read."""
        self._vmstat = vmstat
        self._count = self._read()
        self._when = time.monotonic()

    def note(self) -> None:
        """Before a call: what was counted until now is not its."""
        if time.monotonic() - self._when > _KILLS_AGE:
            self.rose()

    def rose(self) -> bool:
        """Whether it is more than when it was last looked at."""
        before, self._count, self._when = self._count, self._read(), time.monotonic()
        return self._count > before

    def _read(self) -> int:
        if self._vmstat < 0:
            return 0
        _, found, rest = os.pread(self._vmstat, 1 << 16, 0).partition(b"\noom_kill ")
        return int(rest.split(None, 1)[0]) if found else 0
