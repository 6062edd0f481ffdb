"""Cores and memory that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def usable_cores() -> int:
    """Count the cores of this process's affinity, else of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CGROUP, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Files of a cgroup's limit and usage, and the key of reclaimable file pages in its `memory.stat`."""


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP, own: Path = OWN) -> int | None:
    """Return the available memory in bytes, or None where unknown (no Linux). It is the kernel's estimate, in which
    cached files count as free, within the limits of cgroups (containers, Slurm jobs)."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    for folder, (limit, used, files) in _bounds(cgroup, own):
        with suppress(OSError, ValueError):  # no limit, or "max"
            stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            # The cgroup counts cached files as used, though they are reclaimed when memory is needed.
            free = min(free, _number(folder / limit) - _number(folder / used) + int(stat.get(files, 0)))
    return free


def total_memory(cgroup: Path = CGROUP, own: Path = OWN) -> int:
    """Return the machine's memory in bytes, or its smallest cgroup limit."""
    least = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder, (limit, _, _) in _bounds(cgroup, own):
        with suppress(OSError, ValueError):  # no limit, or "max"
            least = min(least, _number(folder / limit))
    return least


def _number(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))


def _bounds(cgroup: Path, own: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the folders of this process's cgroups and their parents, with their files. A container sees its own on
    top, while the path may be the host's."""
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
