"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes: the kernel's estimate, in which files that are only cached count as free, or what the container's limit
    leaves, whichever is less. None where neither is known (no Linux)."""
    try:
        lines = meminfo.read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return free
    # Cached files count as used there, and give way to whoever needs the room.
    return min(free, limit - used + int(stat.get("inactive_file", 0)))
