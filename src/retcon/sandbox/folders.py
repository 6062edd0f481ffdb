"""A pool's folder on the host: made, locked while the pool lives, and swept up by a later pool if it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from retcon.sandbox import scratch

MEMORY = Path("/dev/shm")  # on a disk, making and removing a folder takes longer than the rest of a call
PREFIX = "retcon-sandbox-"
LOCK = "lock"


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
        _remove(self.path)
        os.close(self._lock)


def remove_abandoned(folder: str | Path) -> None:
    """Remove this folder of this user's if its pool is gone; one that is in use stays, silently."""
    folder = Path(folder)
    with contextlib.suppress(OSError):  # another process removes it too, or it is in use
        if folder.stat().st_uid != os.geteuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        finally:
            os.close(lock)


def _sweep(home: Path) -> None:
    """Remove this user's folders whose pool is gone."""
    for folder in home.glob(f"{PREFIX}*"):
        remove_abandoned(folder)


def _remove(folder: Path) -> None:
    """What a call has left may be deeper than Python recurses, and closed to its owner."""
    with contextlib.suppress(OSError):  # it is gone, or what is still ending writes to it: a later pool removes it
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            scratch.empty_open(top)
        finally:
            os.close(top)
        folder.rmdir()
