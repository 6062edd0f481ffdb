"""How much memory this process may still take, and how much there is in all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes: the kernel's estimate, in which files that are only cached count as free, or what the container's limit
    leaves, whichever is less. None where neither is known (no Linux)."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = (int((cgroup / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return free
    # Cached files count as used there, and give way to whoever needs the room.
    return min(free, limit - used + int(stat.get("inactive_file", 0)))


def total_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that the machine has, or that the container's limit lets it have, whichever is less."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroup v2, and of v1
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            return min(machine, int((cgroup / limit).read_text(encoding="ascii")))
    return machine
