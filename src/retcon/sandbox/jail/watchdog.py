"""Limits of a call as a whole, which the kernel sets only where it grants a cgroup: looked at while the call runs.

The next look comes before what is left of a limit could have been filled, and after 50 ms at the latest: so a limit is
outrun by what the machine's cores fill in 5 ms, or make of files and folders, and the look itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from retcon.sandbox.jail import scratch, usage
from retcon.sandbox.jail.child import MEMORY_HEADROOM
from retcon.sandbox.jail.confine import root
from retcon.sandbox.jail.confine.confinement import Confinement
from retcon.sandbox.jail.messages import Bounds

PERIOD = 0.05  # seconds; a call that ends before costs nothing
SHORTEST = 0.005
LENT_SECONDS = 1.0  # that a process is taken to run in its parent's memory, look after look, before it counts itself
FILLED = 8 << 30  # bytes a second that are taken to be filled at most
MADE = 1 << 19  # files and folders a second, likewise
EACH = 2e-5  # seconds that counting one takes, before it is known
SHARE = 0.1  # of the time, at most, that looking takes
HEADROOM_MB = 64  # in a cgroup: what the kernel counts and the watchdog does not, page tables and pipes


class Watchdog:
    """One call's: its processes' memory in sum and, where the kernel does not bound it, its files.

    Those of the whole folder of the worker: where both are of one user, a call may leave the scratch folder for it.
    """

    def __init__(
        self, confinement: Confinement, limits: Bounds, baseline: int, apart: Collection[int] = (), pid: int = 0
    ) -> None:
        """baseline: resident bytes that it is forked with, which no process of the call answers for.

        apart: children of this process, as numbered in its own /proc, that are not the call's. pid: of the child that
        is stopped while many files are counted, 0 for none.
        """
        self._confinement, self._baseline = confinement, baseline
        self._apart = apart
        self._memory_mb = limits.memory_mb
        self._files = None if confinement.bounded else Files(confinement.root, pid)
        self._memory_due = self.due = time.monotonic() + PERIOD
        self.said = ""
        self._limits = self._kills = 0
        self._lent_until: float | None = None
        if confinement.group is not None:
            shares = 1 + len(apart)  # a session's frozen copies keep what it had when each was made
            confinement.group.limit(baseline + (shares * self._memory_mb + root.SIZE_MB + HEADROOM_MB << 20))
            self._limits, self._kills = confinement.group.kills()

    def look(self) -> bool:
        """Whether the call is over a limit; `said` is then the line that tells which."""
        now = time.monotonic()
        if now >= self._memory_due:
            self._look_at_memory()
        if self._files is not None and not self.said and now >= self._files.due:
            self.said = self._files.look()
        self.due = self._memory_due if self._files is None else min(self._memory_due, self._files.due)
        return bool(self.said)

    def _look_at_memory(self) -> None:
        started = time.monotonic()
        about = self._confinement.proc, self._baseline, self._apart
        held = usage.held(*about)
        left = self._left(held)
        if left >= 0:
            self._lent_until = None
        else:  # or one of them runs in another's memory: before, between or after these looks it may begin or end
            lent = usage.lent(*about)
            held = usage.held(*about)
            left = self._left(held) + max(lent, usage.lent(*about))
            if self._lent_until is None:
                self._lent_until = started + LENT_SECONDS
            if left < 0 or started > self._lent_until:
                self.said = self._too_much()
        alone = len(held) < 2
        now = time.monotonic()
        self._memory_due = now + max(_within(PERIOD if alone else left / FILLED), (now - started) / SHARE)

    def _left(self, held: list[int]) -> int:
        """Of its memory. One process is bounded by the kernel, by its address space, with room to tell of its end."""
        return (self._memory_mb << 20) + (MEMORY_HEADROOM if len(held) < 2 else 0) - sum(held)

    def judge(self, status: int) -> bool:
        """After its process ended with `status`, as from wait4: whether the kernel did that, as the machine was out of
        memory. Where it was the cgroup's limit, `said` tells."""
        group = self._confinement.group
        if self.said or not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return False
        if group is None:
            return self._confinement.kills.rose()
        limit, kills = group.kills()
        if kills > self._kills and limit > self._limits:
            self.said = self._too_much()
        return kills > self._kills and not self.said

    def _too_much(self) -> str:
        return f"MemoryError: its processes held more than {self._memory_mb} MiB together"


class Files:
    """The files of a call, where they lie in a file system of the machine.

    They are counted seldom where there are many, and then with the call stopped. The file system itself says at once
    how many bytes were written to it and how many files and folders made, by any process: when that is as much as the
    call may still take, its files are counted. What others free meanwhile can hide no more than they had, which is
    bounded likewise. A file system that does not count its files leaves these to the counting.
    """

    def __init__(self, folder: str, pid: int) -> None:
        self._folder, self._pid = folder, pid
        self._left = (root.SIZE_MB << 20, root.FILES)  # bytes, files and folders
        self._free = self._read_free()
        self._took = 0.0  # seconds of the last count
        self._count_due = time.monotonic() + PERIOD
        self.due = time.monotonic() + _within(root.FILES / MADE)

    def look(self) -> str:
        """Why the call is to end, empty where it is within its bounds."""
        size, entries = self._left_now()
        said, rest = "", 0.0
        gone = size <= 0 or entries <= 0
        if gone or time.monotonic() >= self._count_due:
            said = self._count(new=self._left[1] - entries)
            size, entries = self._left
            rest = self._took if gone else 0.0  # others took it, and may go on
        self.due = time.monotonic() + max(_within(min(size / FILLED, entries / MADE)), rest)
        return said

    def _count(self, new: int) -> str:
        started = time.monotonic()
        stopped = self._pid and max(self._took, new * EACH) > SHORTEST
        if stopped:
            os.kill(self._pid, signal.SIGSTOP)
        self._free = self._read_free()
        try:
            held = scratch.measure(self._folder, root.FILES)
        except OSError as error:
            return f"OSError: its files could not be counted: {error.strerror}: {error.filename!r}"
        finally:
            if stopped:
                os.kill(self._pid, signal.SIGCONT)
        self._took = time.monotonic() - started
        self._count_due = time.monotonic() + max(PERIOD, self._took / SHARE)
        size, entries = self._left = (root.SIZE_MB << 20) - held.size, root.FILES - held.entries
        if entries < 0:
            return f"OSError: its files were more than {root.FILES} together"
        return f"OSError: its files were more than {root.SIZE_MB} MiB together" if size < 0 else ""

    def _left_now(self) -> tuple[int, int]:
        """Bytes, files and folders that may still be taken if all that was since the count is the call's."""
        (size, entries), (bytes_then, files_then), (bytes_now, files_now) = self._left, self._free, self._read_free()
        return size - bytes_then + bytes_now, entries - files_then + files_now

    def _read_free(self) -> tuple[int, int]:
        facts = os.statvfs(self._folder)
        return facts.f_bfree * facts.f_frsize, facts.f_ffree


def _within(seconds: float) -> float:
    return max(min(seconds, PERIOD), SHORTEST)


IN_TICKS = 0.5
"""Of a CPU limit, that a process which the kernel ends for it has used at least: it counts in ticks there, and exactly
where it tells what was used. One that sends itself the signal sooner was ended by that."""


def verdict(
    wait_status: int,
    cpu_used: float,
    cpu_limit: float | None,
    wall_limit: float | None,
    raised: str | None,
    *,
    over: str = "",
    machine: bool = False,
) -> tuple[str, str | None, int, str]:
    """(status, error type, exit code, closing line for stderr) of a call.

    wait_status: from wait4. cpu_used: seconds of the process and the children it waited for. cpu_limit: seconds, None
    where the kernel is not asked to end the process after so many. wall_limit: seconds, None unless the wall clock ran
    out. raised: name of the uncaught exception as the child reported it; it can name a failure or make one (the program
    ended itself with code 0 after it), never unmake one. over: the line that tells which limit of the whole call ended
    it, empty where none did. machine: whether the kernel has ended processes meanwhile because the machine was out of
    memory.
    """
    code = os.waitstatus_to_exitcode(wait_status)
    if over:
        return "limit", over.partition(":")[0], code, over
    if wall_limit is not None:
        return "timeout", "TimeoutError", code, no_end(wall_limit)
    if code == 0 and not raised:
        return "ok", None, 0, ""
    least = {-signal.SIGXCPU: IN_TICKS, -signal.SIGKILL: 1.0}.get(code)
    if cpu_limit is not None and least is not None and cpu_used >= least * cpu_limit:
        return "timeout", "TimeoutError", code, no_end(cpu_limit, " of CPU time")
    if code == -signal.SIGKILL and machine:
        return "infrastructure", None, code, "the kernel ended the program: the machine was out of memory"
    if code < 0:
        name = (
            signal.Signals(-code).name if -code in signal.valid_signals() and -code < signal.SIGRTMIN else f"SIG{-code}"
        )
        return "error", name, code, f"{name}: killed by signal {-code}"
    if raised == "MemoryError":
        return "limit", raised, code, ""
    if raised:
        return "error", raised, code, ""
    return "error", "SystemExit", code, f"SystemExit: {code}"


def cell_verdict(raised: str | None, over: str) -> tuple[str, str | None, str]:
    """(status, error type, closing line for stderr) of a cell after which its interpreter goes on.

    raised: name of the uncaught exception as the interpreter reported it. over: the line that tells which limit it went
    over, empty where it did not.
    """
    if over:
        name = over.partition(":")[0]
        return "timeout" if name == "TimeoutError" else "limit", name, over
    if raised:
        return "limit" if raised == "MemoryError" else "error", raised, ""
    return "ok", None, ""


def with_lines(stderr: str, lines: Collection[str], raised: str | None) -> str:
    """stderr, and what a reader has to know besides at its end, a line each; empty ones are none. raised: the uncaught
    exception, which is named where its traceback did not come to be shown."""
    for line in (raised if raised and raised not in stderr else "", *lines):
        if line:
            stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + line + "\n"
    return stderr


def no_end(seconds: float, of: str = "") -> str:
    return f"TimeoutError: no end after {seconds:g} s{of}"
