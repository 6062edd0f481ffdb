"""What a run costs: CPU seconds, those of its child processes among them, and wall seconds, over all its sessions."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cost:
    """cpu_s: of this process and all of its children, dead or alive. wall_s: while a session of the run was alive."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


class Meter:
    """Counts on from `spent`, which earlier sessions of the run have cost."""

    def __init__(self, spent: Cost | None = None) -> None:
        spent = spent or Cost()
        self._cpu = cpu_seconds() - spent.cpu_s
        self._wall = time.monotonic() - spent.wall_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What is spent within is not counted."""
        before = self.read()
        try:
            yield
        finally:
            after = self.read()
            self._cpu += after.cpu_s - before.cpu_s
            self._wall += after.wall_s - before.wall_s

    def read(self) -> Cost:
        """The cost so far."""
        return Cost(cpu_seconds() - self._cpu, time.monotonic() - self._wall)


def cpu_seconds(proc: Path = Path("/proc")) -> float:
    """User and system time of this process, of children that were waited for, and of living descendants.

    The last from `proc`, where the system has it: a worker that lives as long as the run would be missed otherwise.
    """
    times = os.times()
    return time.process_time() + times.children_user + times.children_system + _descendants(proc, os.getpid())


def _descendants(proc: Path, root: int) -> float:
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir() if proc.is_dir() else ():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold anything; the fields after it are numbers.
            fields = (entry / "stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # utime, stime, and both of its own dead children
    found, total = [root], 0
    while found:
        below = children.get(found.pop(), [])
        total += sum(ticks[pid] for pid in below)
        found += below
    return total / os.sysconf("SC_CLK_TCK")
