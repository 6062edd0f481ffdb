"""The processes below this one: found, told apart, ended. Standard library only: the workers import it.

A process has a pid here and a number in the /proc that the worker has, which may be that of an outer namespace.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator

from retcon.sandbox.usage import children, read

SWEEP_SECONDS = 5.0


def number_of(proc: int, pid: int) -> int:
    """The number of a child of this process, 0 where there is no such child."""
    return next((number for number in children(proc) if pid_of(proc, number) == pid), 0)


def pid_of(proc: int, number: int) -> int:
    """The pid of a process below this one, 0 where it is gone."""
    if os.readlink("self", dir_fd=proc) == str(os.getpid()):
        return number
    return int(_status(proc, number, b"NSpid:") or 0)


def below(proc: int, keep: Collection[int]) -> Iterator[int]:
    """The number of every process that descends from this one, but of the children in `keep`."""
    left = [number for number in children(proc) if number not in keep]
    while left:
        number = left.pop()
        yield number
        left += children(proc, number)


def signal_below(proc: int, keep: Collection[int], sent: int) -> None:
    for number in below(proc, keep):
        signal_number(proc, number, sent)


def signal_number(proc: int, number: int, sent: int) -> None:
    pid = pid_of(proc, number)
    if pid:
        try:
            os.kill(pid, sent)
        except ProcessLookupError:  # it ended meanwhile
            return


def end_below(proc: int, keep: Collection[int]) -> bool:
    """End and reap all that descends from this process but the children in `keep`; False where some would not end.

    Orphans become children of this process, which is process 1 of a namespace or a subreaper.
    """
    deadline = time.monotonic() + SWEEP_SECONDS
    while True:
        _reap()
        found = [number for number in children(proc) if number not in keep]
        if not found:
            return True
        for number in found:
            signal_number(proc, number, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, 0 where it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's number for the CPU clock of a process
    except OSError:
        return 0.0


def peak(proc: int, number: int) -> int:
    """Bytes of a process that were in memory at most, 0 where it has ended."""
    return int(_status(proc, number, b"VmHWM:") or 0) << 10


def _status(proc: int, number: int, name: bytes) -> bytes:
    """The last number of a line in a process's status."""
    try:
        text = read(proc, f"{number}/status")
    except OSError:
        return b""
    line = text.partition(name)[2].partition(b"\n")[0].removesuffix(b" kB")
    return line.split()[-1] if line else b""


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
