"""Limits of a whole call, polled while it runs, besides cgroups.

The next check comes before the rest of a limit could be filled, and after 50 ms at the latest: so a limit is exceeded
by at most what the machine's cores fill in 5 ms, or create of files and folders, and during the check itself.
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

PERIOD = 0.05  # seconds; a shorter call costs nothing
SHORTEST = 0.005
LENT_SECONDS = 1.0  # longest time for which a process is believed to run in its parent's memory
FILLED = 8 << 30  # assumed maximum of bytes filled per second
MADE = 1 << 19  # assumed maximum of files and folders per second
EACH = 2e-5  # assumed seconds to count one
SHARE = 0.1  # largest share of time for checks
HEADROOM_MB = 64  # in a cgroup: page tables and pipes, which only the kernel counts


class Watchdog:
    """Watchdog of one call: its processes' total memory and, without a bounded tmpfs, its files.

    It counts files of the worker's whole folder: with the same user, a call may write outside the scratch folder.
    """

    def __init__(
        self, confinement: Confinement, limits: Bounds, baseline: int, apart: Collection[int] = (), pid: int = 0
    ) -> None:
        """Start watching. baseline: resident bytes that each process is forked with, which do not count.

        apart: children of this process, as numbered in its own /proc, that are not the call's. pid: child to stop while
        many files are counted, 0 for none.
        """
        self._confinement, self._baseline = confinement, baseline
        self._apart = apart
        self._memory_mb = limits.memory_mb
        self._files = None if confinement.bounded else Files(confinement.root, pid)
        self._memory_due = self.due = time.monotonic() + PERIOD
        self.reason = ""
        self._limits = self._kills = 0
        self._lent_until: float | None = None
        if confinement.group is not None:
            shares = 1 + len(apart)  # a session's frozen copies keep its memory at their time
            confinement.group.limit(baseline + (shares * self._memory_mb + root.SIZE_MB + HEADROOM_MB << 20))
            self._limits, self._kills = confinement.group.kills()

    def look(self) -> bool:
        """Check the limits; return whether one is exceeded, which `reason` then names."""
        now = time.monotonic()
        if now >= self._memory_due:
            self._look_at_memory()
        if self._files is not None and not self.reason and now >= self._files.due:
            self.reason = self._files.look()
        self.due = self._memory_due if self._files is None else min(self._memory_due, self._files.due)
        return bool(self.reason)

    def _look_at_memory(self) -> None:
        started = time.monotonic()
        about = self._confinement.proc, self._baseline, self._apart
        held = usage.held(*about)
        left = self._left(held)
        if left >= 0:
            self._lent_until = None
        else:  # or one of them runs in another's memory, which may begin or end between these checks
            lent = usage.lent(*about)
            held = usage.held(*about)
            left = self._left(held) + max(lent, usage.lent(*about))
            if self._lent_until is None:
                self._lent_until = started + LENT_SECONDS
            if left < 0 or started > self._lent_until:
                self.reason = self._memory_message()
        alone = len(held) < 2
        now = time.monotonic()
        self._memory_due = now + max(_within(PERIOD if alone else left / FILLED), (now - started) / SHARE)

    def _left(self, held: list[int]) -> int:
        """Return the memory left. A single process is limited by the kernel, with headroom for its report."""
        return (self._memory_mb << 20) + (MEMORY_HEADROOM if len(held) < 2 else 0) - sum(held)

    def judge(self, status: int) -> bool:
        """Return whether the kernel killed the process for lack of memory.

        status: of wait4. If it was the cgroup's limit, `reason` names that."""
        group = self._confinement.group
        if self.reason or not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return False
        if group is None:
            return self._confinement.kills.rose()
        limit, kills = group.kills()
        if kills > self._kills and limit > self._limits:
            self.reason = self._memory_message()
        return kills > self._kills and not self.reason

    def _memory_message(self) -> str:
        return f"MemoryError: its processes held more than {self._memory_mb} MiB together"


class Files:
    """Limit on a call's files in one of the machine's file systems.

    Many files are counted rarely, and then with the call stopped. The file system itself reports at once how many bytes
    were written and how many files and folders made, by any process: when that reaches the call's remaining allowance,
    its files are counted. Space that others free meanwhile can hide no more than they had, which is limited likewise.
    On a file system without a file count only the counting finds too many files.
    """

    def __init__(self, folder: str, pid: int) -> None:
        self._folder, self._pid = folder, pid
        self._left = (root.SIZE_MB << 20, root.FILES)  # bytes, files and folders
        self._free = self._read_free()
        self._took = 0.0  # seconds of the last count
        self._count_due = time.monotonic() + PERIOD
        self.due = time.monotonic() + _within(root.FILES / MADE)

    def look(self) -> str:
        """Return why the call must end, "" within its limits."""
        size, entries = self._left_now()
        reason, rest = "", 0.0
        gone = size <= 0 or entries <= 0
        if gone or time.monotonic() >= self._count_due:
            reason = self._count(new=self._left[1] - entries)
            size, entries = self._left
            rest = self._took if gone else 0.0  # others took it, and may continue
        self.due = time.monotonic() + max(_within(min(size / FILLED, entries / MADE)), rest)
        return reason

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
        """Return the bytes, files and folders left if all since the last count is the call's."""
        (size, entries), (bytes_then, files_then), (bytes_now, files_now) = self._left, self._free, self._read_free()
        return size - bytes_then + bytes_now, entries - files_then + files_now

    def _read_free(self) -> tuple[int, int]:
        facts = os.statvfs(self._folder)
        return facts.f_bfree * facts.f_frsize, facts.f_ffree


def _within(seconds: float) -> float:
    return max(min(seconds, PERIOD), SHORTEST)


IN_TICKS = 0.5
"""Least share of a CPU limit that a process which the kernel ends for it has used: the kernel enforces it in ticks, but
reports usage exactly. One that used less sent itself the signal."""


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
    """Return a call's (status, error type, exit code, last stderr line).

    wait_status: from wait4. cpu_used: seconds of the process and the children it waited for. cpu_limit: seconds, None
    if the kernel does not enforce one. wall_limit: seconds, None unless the wall clock ran out. raised: name of the
    uncaught exception as the child reported it; it can name a failure or cause one (the program exited with 0 after
    it), never undo one. over: names the limit of the whole call that ended it, "" for none. machine: whether the kernel
    has ended processes meanwhile because the machine was out of memory.
    """
    code = os.waitstatus_to_exitcode(wait_status)
    if over:
        return "limit", over.partition(":")[0], code, over
    if wall_limit is not None:
        return "timeout", "TimeoutError", code, timeout_line(wall_limit)
    if code == 0 and not raised:
        return "ok", None, 0, ""
    least = {-signal.SIGXCPU: IN_TICKS, -signal.SIGKILL: 1.0}.get(code)
    if cpu_limit is not None and least is not None and cpu_used >= least * cpu_limit:
        return "timeout", "TimeoutError", code, timeout_line(cpu_limit, " of CPU time")
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
    """Return (status, error type, last line of stderr) of a cell.

    Its interpreter lives on. raised: name of the uncaught exception as the interpreter reported it. over: names the
    limit that it exceeded, "" for none.
    """
    if over:
        name = over.partition(":")[0]
        return "timeout" if name == "TimeoutError" else "limit", name, over
    if raised:
        return "limit" if raised == "MemoryError" else "error", raised, ""
    return "ok", None, ""


def append_lines(stderr: str, lines: Collection[str], raised: str | None) -> str:
    """Append lines to stderr, without empty ones. raised: the uncaught exception, which is named if its traceback is
    missing."""
    for line in (raised if raised and raised not in stderr else "", *lines):
        if line:
            stderr += ("\n" if stderr and not stderr.endswith("\n") else "") + line + "\n"
    return stderr


def timeout_line(seconds: float, of: str = "") -> str:
    return f"TimeoutError: no end after {seconds:g} s{of}"
