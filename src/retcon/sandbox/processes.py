"""The processes below this one: found, counted, stopped, ended. Standard library only: the workers import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator

SWEEP_SECONDS = 5.0


def reap() -> bool:
    """Reap what has ended; whether no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def children(pid: int) -> list[int]:
    """Of every thread of `pid`, empty where it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def below(keep: Collection[int]) -> Iterator[int]:
    """Every process that descends from this one, but those in `keep`."""
    left = [pid for pid in children(os.getpid()) if pid not in keep]
    while left:
        pid = left.pop()
        yield pid
        left += children(pid)


def end_below(keep: Collection[int]) -> bool:
    """End and reap all that descends from this process but the children in `keep`; False where some would not end.

    Orphans become children of this process, which is process 1 of a namespace or a subreaper.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        reap()
        found = [pid for pid in children(os.getpid()) if pid not in keep]
        if not found:
            return True
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, 0 where it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's number for the CPU clock of a process
    except OSError:
        return 0.0


def resident(pid: int) -> tuple[int, int]:
    """(peak, present anonymous) bytes of resident memory, zeros where the process has ended."""
    peak = anonymous = 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    peak = int(line.split()[1]) << 10
                elif line.startswith(b"RssAnon:"):
                    anonymous = int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError):
        pass
    return peak, anonymous
