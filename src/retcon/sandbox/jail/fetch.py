"""Handing back files that a call has written. Standard library only: the workers import it.

The worker reads them, with more rights than the call had and after all processes of the call have ended. So it follows
no symbolic link, on no component of a path, and opens nothing but ordinary files.
"""

from __future__ import annotations

import base64
import io
import os
import stat
from collections.abc import Sequence

TOTAL_BYTES = 8 << 20
"""What one call may hand back, all its files together."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block the worker


def collect(scratch: str, paths: Sequence[str], room: int = TOTAL_BYTES) -> dict[str, str]:
    """Path to content in base64, of those `paths` that can be handed back within `room` bytes.

    They are below `scratch`; an absolute one is of the root that the worker has for itself (`paths.inside_scratch`).
    """
    found = {}
    for path in paths:
        try:
            content = _read(scratch, path, room)
        except OSError:  # not there, a link, or no permission: as if it had not been written
            continue
        if content is not None:
            room -= len(content)
            found[path] = base64.b64encode(content).decode()
    return found


def _read(scratch: str, path: str, room: int) -> bytes | None:
    *folders, name = [part for part in path.split("/") if part not in ("", ".")]
    where = os.open("/" if path.startswith("/") else scratch, _FOLDER)
    try:
        for folder in folders:
            inner = os.open(folder, _FOLDER, dir_fd=where)
            os.close(where)
            where = inner
        file = os.open(name, _FILE, dir_fd=where)
    finally:
        os.close(where)
    with io.FileIO(file) as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        content = opened.read(room + 1)
    return content if len(content) <= room else None
