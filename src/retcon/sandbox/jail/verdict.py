"""From how a process ended to the status of its call. Pure; standard library only: the workers import it."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

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
