"""The processes of a call and what they use, from /proc. Standard library only: the workers import it."""

from __future__ import annotations

import os
import resource
from collections.abc import Container

_PAGE = resource.getpagesize()


def read(proc: int, path: str) -> bytes:
    """A file beneath the descriptor of a /proc. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.read(fd, 1 << 16)
    finally:
        os.close(fd)


def address_space(proc: int) -> int:
    """Bytes of address space of this process."""
    return int(read(proc, "self/statm").split()[0]) * _PAGE


def resident(proc: int, pid: int | str) -> int:
    """Bytes of a process that are in memory, 0 where it is gone."""
    try:
        return int(read(proc, f"{pid}/statm").split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def children(proc: int, pid: int | None = None) -> list[int]:
    """The child processes of `pid`, of this process where None, as numbered in `proc`. [] where it is gone.

    This process is taken to have one thread.
    """
    try:
        if pid is None:
            own = os.readlink("self", dir_fd=proc)
            return [int(child) for child in read(proc, f"{own}/task/{own}/children").split()]
        found = []
        for thread in _listing(proc, f"{pid}/task"):
            found += [int(child) for child in read(proc, f"{pid}/task/{thread}/children").split()]
        return found
    except OSError:
        return []


def used(proc: int, baseline: int, apart: Container[int] = ()) -> int:
    """Bytes in memory that the descendants of this process hold together, beyond `baseline` for each of them.

    apart: children, as numbered in `proc`, that do not count. Memory that a fork shares counts for each process that
    has it: what they could make of it is counted.
    """
    total, rest = 0, [pid for pid in children(proc) if pid not in apart]
    while rest:
        pid = rest.pop()
        total += max(resident(proc, pid) - baseline, 0)
        rest += children(proc, pid)
    return total


def _listing(proc: int, path: str) -> list[str]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=proc)
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)
