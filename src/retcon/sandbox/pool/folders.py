"""A pool's folder on the host: made, locked while the pool lives, and swept up by a later pool if it was killed."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from retcon.sandbox.jail.leftovers import LOCK, remove, remove_abandoned

MEMORY = Path("/dev/shm")  # on a disk, making and removing a folder takes longer than the rest of a call
PREFIX = "retcon-sandbox-"


class PoolFolder:
    """A new folder, which is locked until `remove`. The lock ends with the process however that ends."""

    def __init__(self, home: Path | None = None) -> None:
        home = home or (MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
        _sweep(home)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=home))
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
