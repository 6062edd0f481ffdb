"""Folders and files that one process at a time writes into."""

from __future__ import annotations

import errno
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from retcon.core.errors import CheckpointError
from retcon.store.whole import explained

LOCK = ".lock"
"""What stands in a folder that was written into so."""
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems say that know no locks, as some of clusters: work goes on there without."""


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No other process is within such a block over the folder `out`, which is made; the system forgets it with the
    process. Raises CheckpointError where one is, StorageError."""
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / LOCK).open("w")
    with lock:
        if not taken(lock):
            raise CheckpointError(f"another command is at work in {out}: wait for it, or choose another folder")
        yield


@contextmanager
def alone_on(file: Path) -> Iterator[None]:
    """The same over one file, which is made; within the block it may be removed. Raises as `alone`."""
    with explained(file):
        lock = file.open("ab")
    with lock:
        if not taken(lock) or not os.fstat(lock.fileno()).st_nlink:  # removed between its opening and its lock
            raise CheckpointError(f"another command is at work on {file}: wait for it, or name another file")
        yield


def taken(lock: IO[str] | IO[bytes] | io.FileIO) -> bool:
    """Whether this process has the lock now, until it closes the file; also where there are no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
