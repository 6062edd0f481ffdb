"""How many cores this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable_cores() -> int:
    """Those that it is bound to, where the system says so; else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CGROUP, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files of a control group's limit and of what is used of it; what its `memory.stat` calls files that give way."""


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP, own: Path = OWN) -> int | None:
    """Bytes: the kernel's estimate, in which files that are only cached count as free, or what the limit of a container
    leaves, or that of another control group, such as a job's of Slurm, whichever is least. None where the former is not
    known (no Linux)."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    for folder, (limit, used, files) in _bounds(cgroup, own):
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            # Cached files count as used there, and give way to whoever needs the room.
            free = min(free, _number(folder / limit) - _number(folder / used) + int(stat.get(files, 0)))
    return free


def total_memory(cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Bytes that the machine has, or that the limit of a container or another control group lets this process have,
    whichever is least."""
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder, (limit, _, _) in _bounds(cgroup, own):
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            least = min(least, _number(folder / limit))
    return least


def _number(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))


def _bounds(cgroup: Path, own: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The folders of the control groups that this process is in, each with those above it, and their files. A container
    sees its own on top, perhaps beside a path that is the machine's."""
    paths: dict[str, str] = {}
    with suppress(OSError, ValueError):
        for line in own.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _, kinds, path = line.split(":", 2)
            paths |= dict.fromkeys(kinds.split(","), path.strip("/"))
    for top, path, files in ((cgroup, paths.get("", ""), V2), (cgroup / "memory", paths.get("memory", ""), V1)):
        folder = top / path
        yield top, files
        while folder != top:
            yield folder, files
            folder = folder.parent
