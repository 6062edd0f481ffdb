"""Folders that one process at a time writes into."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retcon.core.errors import CheckpointError
from retcon.store.whole import explained

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems say that know no locks, as some of clusters: work goes on there without."""


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No other process is within such a block over the folder `out`, which is made; the system forgets it with the
    process. Raises CheckpointError where one is, StorageError."""
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        file = (out / ".lock").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"another command is at work in {out}: wait for it, or choose another folder"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
