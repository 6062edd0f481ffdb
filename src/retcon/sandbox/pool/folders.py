"""A pool's folder on the host: made, locked while the pool lives, and swept up by a later pool if it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from retcon.sandbox.jail.confine.users import closed_to_others
from retcon.sandbox.jail.leftovers import LOCK, remove, remove_abandoned

MEMORY = Path("/dev/shm")  # on a disk, making and removing a folder takes longer than the rest of a call
PREFIX = "retcon-sandbox-"


class PoolFolder:
    """A new folder, which is locked until `remove`. The lock ends with the process however that ends.

    home: where it is made; None: in memory, unless there is no `room` for so many bytes, as calls of the weaker tiers
    have their files here (a container may have 64 MiB of it), and there is among the temporary files.
    """

    def __init__(self, home: Path | None = None, *, room: int = 0) -> None:
        homes = [home or MEMORY]
        if home is None:
            with contextlib.suppress(FileNotFoundError):  # all else may be read-only, as in some containers
                homes.append(Path(tempfile.gettempdir()))
        for one in homes:
            _sweep(one)
        writable = [one for one in homes if os.access(one, os.W_OK)] or homes
        chosen = next((one for one in writable if _free(one) >= room and _is_open(one)), writable[0])
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=chosen))
        self.path.chmod(0o711)  # a child that became nobody must reach its scratch folder
        unlocked = self.path / f"{LOCK}.new"
        self._lock = os.open(unlocked, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(self.path / LOCK)  # from here on others see it, and see it locked

    def remove(self) -> None:
        remove(str(self.path))
        os.close(self._lock)


def _sweep(home: Path) -> None:
    """Remove this user's folders whose pool is gone."""
    for folder in home.glob(f"{PREFIX}*"):
        remove_abandoned(str(folder))


def _free(folder: Path) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize


def _is_open(folder: Path) -> bool:
    """Whether calls reach what is in it, whose users are others where root starts them."""
    return os.geteuid() != 0 or closed_to_others(str(folder)) is None
