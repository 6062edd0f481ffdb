"""When a cell is over one of its limits, and what is done about it. Standard library only: the workers import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection

from retcon.sandbox.jail.session.copies import Child, Copy
from retcon.sandbox.jail.session.processes import SWEEP_SECONDS, Tree, cpu_seconds
from retcon.sandbox.jail.verdict import no_end
from retcon.sandbox.jail.watchdog import Watchdog

INTERRUPT_SECONDS = 1.0  # that a cell has to obey the interrupt; `subprocess.run` takes .25 of them to end its process
FLUSH_SECONDS = 0.2  # between SIGXCPU, at which printed output is written out, and SIGKILL
SHORTEST = 0.01  # seconds between two looks at the CPU clock


class Deadlines:
    """Watches the interpreter `pid` of the session's `tree`, and its frozen `copies`, from now on.

    over: the line that tells which limit the interpreter went over, empty while it went over none.

    Over a clock it gets an interrupt, after which it may live on, then a chance to write out, then the end; over
    `watchdog`'s limits the end at once. The CPU limit of a cell is the interpreter's alone; another process that uses
    as much in its life is ended, and so is a frozen copy that runs.
    """

    def __init__(
        self,
        pid: int,
        tree: Tree,
        copies: Collection[Copy],
        *,
        cpu_limit: float,
        wall_limit: float,
        watchdog: Watchdog,
    ) -> None:
        self.over = ""
        self._pid, self._tree, self._copies = pid, tree, copies
        self._cpu_limit, self._wall_limit = cpu_limit, wall_limit
        self._watchdog = watchdog
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
        now = time.monotonic()
        left = self._end - now
        if not self.over:
            left = min(left, max(self._cpu_left() / self._cores, SHORTEST), self._watchdog.due - now)
        return max(left, 0.0)

    def check(self) -> None:
        """Take the next step if it is time. Raises OSError where the interpreter cannot even be killed."""
        now = time.monotonic()
        if not self.over:
            self._end_spinners()
            if now >= self._watchdog.due and self._watchdog.look():
                self.over = self._watchdog.said
                del self._steps[:-1]
            elif self._cpu_left() <= 0:
                self.over = no_end(self._cpu_limit, " of CPU time")
            elif now >= self._end:
                self.over = no_end(self._wall_limit)
            else:
                return
        elif now < self._end:
            return
        if not self._steps:
            raise OSError("the interpreter of a session cannot be ended")
        sent, seconds = self._steps.pop(0)
        os.kill(self._pid, sent)
        self._end = time.monotonic() + seconds

    def starved(self, status: int) -> bool:
        """After the interpreter ended with `status`: see `Watchdog.judge`."""
        starved = self._watchdog.judge(status)
        self.over = self.over or self._watchdog.said
        return starved

    def _cpu_left(self) -> float:
        return self._cpu_limit - (cpu_seconds(self._pid) - self._cpu)

    def _end_spinners(self) -> None:
        tree, copies = self._tree, self._copies
        for copy in copies:
            if not copy.is_fit(tree):
                copy.signal(signal.SIGKILL)
        for number in tree.below([copy.number for copy in copies]):
            pid = tree.pid(number)
            if pid != self._pid and cpu_seconds(pid) > self._cpu_limit:
                tree.signal(number, signal.SIGKILL)


def refuse_starved(interpreter: Child, watchdog: Watchdog) -> None:
    """Raises OSError where the kernel has ended the interpreter, as the machine was out of memory, since the watchdog
    was set."""
    if interpreter.was_killed and watchdog.judge(signal.SIGKILL):
        raise OSError("the kernel ended the interpreter: the machine was out of memory")
