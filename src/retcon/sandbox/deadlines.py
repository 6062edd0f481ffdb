"""When a cell's clocks run out, and what is done about it. Standard library only: the workers import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from retcon.sandbox.processes import SWEEP_SECONDS, below, cpu_seconds
from retcon.sandbox.verdict import no_end

INTERRUPT_SECONDS = 1.0  # that a cell has to obey the interrupt; `subprocess.run` takes .25 of them to end its process
FLUSH_SECONDS = 0.2  # between SIGXCPU, at which printed output is written out, and SIGKILL
SHORTEST = 0.01  # seconds between two looks at the CPU clock


class Deadlines:
    """Watches the interpreter `pid` from now on. late: which clock ran out, as a line for stderr; empty while none has.

    Then comes an interrupt, after which the interpreter may live on, then a chance to write out, then the end. The CPU
    limit of a cell is the interpreter's alone; another process that uses as much in its life is ended.
    """

    def __init__(self, pid: int, cpu_limit: float, wall_limit: float) -> None:
        self.late = ""
        self._pid = pid
        self._cpu_limit, self._wall_limit = cpu_limit, wall_limit
        self._cpu = cpu_seconds(pid)
        self._end = time.monotonic() + wall_limit
        self._cores = os.cpu_count() or 1
        self._steps = [
            (signal.SIGINT, INTERRUPT_SECONDS),
            (signal.SIGXCPU, FLUSH_SECONDS),
            (signal.SIGKILL, SWEEP_SECONDS),
        ]

    def wait(self) -> float:
        """Seconds until `check` is due."""
        left = self._end - time.monotonic()
        if not self.late:
            left = min(left, max(self._cpu_left() / self._cores, SHORTEST))
        return max(left, 0.0)

    def check(self, frozen: Collection[int]) -> None:
        """Take the next step if it is time. Raises OSError where the interpreter cannot even be killed."""
        if not self.late:
            self._end_spinners(frozen)
            if self._cpu_left() <= 0:
                self.late = no_end(self._cpu_limit, " of CPU time")
            elif time.monotonic() >= self._end:
                self.late = no_end(self._wall_limit)
            else:
                return
        elif time.monotonic() < self._end:
            return
        if not self._steps:
            raise OSError("the interpreter of a session cannot be ended")
        number, seconds = self._steps.pop(0)
        os.kill(self._pid, number)
        self._end = time.monotonic() + seconds

    def _cpu_left(self) -> float:
        return self._cpu_limit - (cpu_seconds(self._pid) - self._cpu)

    def _end_spinners(self, frozen: Collection[int]) -> None:
        for pid in below(frozen):
            if pid != self._pid and cpu_seconds(pid) > self._cpu_limit:
                os.kill(pid, signal.SIGKILL)
