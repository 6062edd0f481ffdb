"""Limits of a call as a whole, which the kernel sets only where it grants a cgroup: looked at while the call runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from typing import Any

from retcon.sandbox import root, scratch, usage
from retcon.sandbox.world import World

PERIOD = 0.05  # seconds; a call that ends before costs nothing
HEADROOM_MB = 64  # in a cgroup: what the kernel counts and the watchdog does not, page tables and pipes
SHARE = 0.02  # of the time, at most, that looking takes


class Watchdog:
    """One call's: its processes' memory in sum and, where the kernel does not bound it, its files.

    Those of the whole folder of the worker: where both are of one user, a call may leave the scratch folder for it.
    """

    def __init__(self, world: World, limits: dict[str, Any], baseline: int, apart: Collection[int] = ()) -> None:
        """baseline: resident bytes of the warm interpreter, which no process of the call answers for.

        apart: children of this process, as numbered in the world's /proc, that are not the call's.
        """
        self._world, self._baseline = world, baseline
        self._apart = apart
        self._memory_mb = limits["memory_mb"]
        self.due = time.monotonic() + PERIOD
        self.said = ""
        self._kills = 0
        if world.group is not None:
            shares = 1 + len(apart)  # a session's frozen copies keep what it had when each was made
            world.group.limit(baseline + (shares * self._memory_mb + root.SIZE_MB + HEADROOM_MB << 20))
            self._kills = world.group.kills()

    def look(self) -> bool:
        """Whether the call is over a limit; `said` is then the line that tells which."""
        started = time.monotonic()
        if usage.used(self._world.proc, self._baseline, self._apart) > self._memory_mb << 20:
            self.said = self._too_much()
        elif not self._world.bounded and scratch.size(self._world.root, root.FILES) > root.SIZE_MB << 20:
            self.said = f"OSError: its files were more than {root.SIZE_MB} MiB, or than {root.FILES}, together"
        ended = time.monotonic()
        self.due = ended + max(PERIOD, (ended - started) / SHARE)
        return bool(self.said)

    def judge(self, status: int) -> None:
        """After the call's process ended with `status`, as from wait4: was it the cgroup's limit that did it?"""
        group = self._world.group
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if group is not None and killed and not self.said and group.kills() > self._kills:
            self.said = self._too_much()

    def _too_much(self) -> str:
        return f"MemoryError: its processes held more than {self._memory_mb} MiB together"
