"""cgroup v2: kernel limits on memory and processes of a worker's calls.

It needs a cgroup that this user may write, whose children have the controllers `memory` and `pids`: the one named by
the environment variable RETCON_CGROUP, or the process's own. Making a child in it shows whether that works.
Kernel documentation admin-guide/cgroup-v2. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os

MOUNT = "/sys/fs/cgroup"
VARIABLE = "RETCON_CGROUP"
PREFIX = "retcon-"
CONTROLLERS = ("memory", "pids")


def own(mount: str = MOUNT, table: str = "/proc/self/cgroup") -> str:
    """Return the folder of this process's cgroup. Raises OSError without cgroup v2."""
    with open(table) as file:
        for line in file:
            if line.startswith("0::"):
                folder = os.path.normpath(f"{mount}/{line[3:].strip()}")
                if os.path.exists(f"{folder}/cgroup.controllers"):
                    return folder
    raise OSError(errno.ENOENT, f"no cgroup v2 at {mount}")


class Cgroup:
    """One worker's cgroup in `parent`. The next one made there removes it once it is empty."""

    def __init__(self, parent: str, name: str) -> None:
        """Create the cgroup. Raises OSError, which names what is missing."""
        self.folder = f"{parent}/{PREFIX}{name}"
        _enable(parent)
        _sweep(parent)
        os.mkdir(self.folder)
        missing = [c for c in CONTROLLERS if not os.path.exists(f"{self.folder}/{c}.max")]
        if missing:
            os.rmdir(self.folder)
            raise OSError(errno.ENOTSUP, f"cgroup {parent} does not pass on {' and '.join(missing)}")
        self._memory = os.open(f"{self.folder}/memory.max", os.O_WRONLY | os.O_CLOEXEC)
        self._events = os.open(f"{self.folder}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self._limit = 0

    def join(self, pids: int) -> None:
        """Move this process into the cgroup, with at most `pids` tasks. Raises OSError."""
        _put(f"{self.folder}/pids.max", str(pids))
        with contextlib.suppress(OSError):  # kernels without swap accounting
            _put(f"{self.folder}/memory.swap.max", "0")
        _put(f"{self.folder}/cgroup.procs", "0")

    def limit(self, size: int) -> None:
        """Limit memory, files of the scratch folder included. size: bytes."""
        if size != self._limit:
            os.pwrite(self._memory, str(size).encode(), 0)
            self._limit = size

    def kills(self) -> tuple[int, int]:
        """Return how often memory hit the limit, and the OOM kills.

        The latter also count kills for lack of the machine's memory."""
        counts = dict(line.split()[:2] for line in os.pread(self._events, 4096, 0).splitlines())
        return int(counts.get(b"oom", 0)), int(counts.get(b"oom_kill", 0))


def join(name: str, pids: int) -> Cgroup:
    """Create and join a cgroup for this process; hide the variable from its calls. Raises OSError with the reason."""
    group = Cgroup(os.environ.pop(VARIABLE, "") or own(), name)
    try:
        group.join(pids)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(group.folder)
        raise
    return group


def _enable(parent: str) -> None:
    with open(f"{parent}/cgroup.subtree_control") as file:
        on = file.read().split()
    if not set(CONTROLLERS) <= set(on):
        _put(f"{parent}/cgroup.subtree_control", " ".join(f"+{name}" for name in CONTROLLERS))


def _sweep(parent: str) -> None:
    """Remove cgroups of dead workers; the kernel refuses to remove those in use."""
    for name in os.listdir(parent):
        if name.startswith(PREFIX):
            with contextlib.suppress(OSError):
                os.rmdir(f"{parent}/{name}")


def _put(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
