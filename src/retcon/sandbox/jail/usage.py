"""Processes of a call and their memory, from /proc. Standard library only: the workers import it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Container, Iterator

_PAGE = resource.getpagesize()
_KILLS_AGE = 1.0  # seconds after which the machine's count is read again before a call


def read(proc: int, path: str) -> bytes:
    """Read a file beneath the descriptor of a /proc. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def open_own(proc: int) -> int:
    """Open this process's statm for `own`, which measures it also in forks."""
    return os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)


def own(statm: int) -> tuple[int, int]:
    """Return (address space, resident) of the process that opened `statm`, in bytes."""
    return _parsed(os.pread(statm, 256, 0))


def resident(proc: int, pid: int | str) -> int:
    """Return a process's resident bytes, 0 if it is gone.

    A process whose first thread has ended reads as empty: its other threads are asked then.
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
    """Return (address space, resident) in bytes, from a file `statm`."""
    try:
        return _parsed(read(proc, path))
    except (OSError, ValueError):
        return 0, 0


def _parsed(statm: bytes) -> tuple[int, int]:
    size, held, _ = statm.split(None, 2)
    return int(size) * _PAGE, int(held) * _PAGE


def children(proc: int, pid: int | None = None) -> list[int]:
    """List child processes of `pid` (default: this one), numbered in `proc`.

    This process must have one thread. [] if `pid` is gone.
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
    """Return the resident bytes of each descendant beyond `baseline`.

    apart: children, as numbered in `proc`, that do not count. Memory shared by fork counts for each process, as each
    may write to it.
    """
    return [max(resident(proc, pid) - baseline, 0) for pid, _ in _descendants(proc, apart)]


def lent(proc: int, baseline: int, apart: Container[int] = ()) -> int:
    """Return the bytes that `held` counts twice because of vfork.

    After vfork, by which `subprocess` starts programs, a child runs in its parent's memory until it is another program;
    the parent's thread waits in state D meanwhile. /proc does not show whose memory a process has. So a child as large
    as its parent, which has such a thread, is taken for one. A fork can imitate that (reading from a disk is state D as
    well): so only the largest such process counts, and the caller trusts it for a limited time.
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
    """Yield (process, its parent) of all descendants; None for this process. apart: see `held`."""
    rest: list[tuple[int, int | None]] = [(pid, None) for pid in children(proc) if pid not in apart]
    while rest:
        found = rest.pop()
        yield found
        rest += [(pid, found[0]) for pid in children(proc, found[0])]


def _has_waiting_thread(proc: int, pid: int) -> bool:
    """Whether a thread of the process is in state D."""
    try:
        return any(
            read(proc, f"{pid}/task/{thread}/stat").rpartition(b")")[2].split(None, 1)[0] == b"D"
            for thread in listing(proc, f"{pid}/task")
        )
    except OSError:
        return False


def listing(proc: int, path: str) -> list[str]:
    """List a folder below `proc`, a descriptor of /proc."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


class MachineKills:
    """Counter of the machine's OOM kills, containers' cgroups included.

    A process cannot see who sent it SIGKILL. This count is the only sign that the kernel did, and a process within its
    own limits cannot raise it.
    """

    def __init__(self, vmstat: int = -1) -> None:
        """Start counting. vmstat: a descriptor of the machine's /proc/vmstat, -1 if it cannot be read."""
        self._vmstat = vmstat
        self._count = self._read()
        self._when = time.monotonic()

    def note(self) -> None:
        """Exclude earlier kills, before a call."""
        if time.monotonic() - self._when > _KILLS_AGE:
            self.rose()

    def rose(self) -> bool:
        """Return whether the count rose since the last check."""
        before, self._count, self._when = self._count, self._read(), time.monotonic()
        return self._count > before

    def _read(self) -> int:
        if self._vmstat < 0:
            return 0
        _, found, rest = os.pread(self._vmstat, 1 << 16, 0).partition(b"\noom_kill ")
        return int(rest.split(None, 1)[0]) if found else 0
