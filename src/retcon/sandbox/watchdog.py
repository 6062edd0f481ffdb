"""Limits that the kernel does not set on a call as a whole: looked at again and again while it runs."""

from __future__ import annotations

import time
from collections.abc import Container
from typing import Any

from retcon.sandbox import root, scratch, usage
from retcon.sandbox.world import World

PERIOD = 0.05  # seconds; a call that ends before costs nothing
SHARE = 0.02  # of the time, at most, that looking takes


class Watchdog:
    """One call's: its processes' memory in sum and, where the kernel does not bound it, its scratch folder."""

    def __init__(
        self, world: World, folder: str, limits: dict[str, Any], baseline: int, apart: Container[int] = ()
    ) -> None:
        """baseline: resident bytes of the warm interpreter, which no process of the call answers for.

        apart: children of this process, as numbered in the world's /proc, that are not the call's.
        """
        self._world, self._folder, self._baseline = world, folder, baseline
        self._apart = apart
        self._memory_mb = limits["memory_mb"]
        self.due = time.monotonic() + PERIOD
        self.said = ""

    def look(self) -> bool:
        """Whether the call is over a limit; `said` is then the line that tells which."""
        started = time.monotonic()
        if usage.used(self._world.proc, self._baseline, self._apart) > self._memory_mb << 20:
            self.said = f"MemoryError: its processes held more than {self._memory_mb} MiB together"
        elif not self._world.bounded and scratch.size(self._folder, root.FILES) > root.SIZE_MB << 20:
            self.said = f"OSError: its files were more than {root.SIZE_MB} MiB, or than {root.FILES}, together"
        ended = time.monotonic()
        self.due = ended + max(PERIOD, (ended - started) / SHARE)
        return bool(self.said)
