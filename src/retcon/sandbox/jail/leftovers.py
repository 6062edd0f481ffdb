"""Folders of a pool on the host, removed with all that calls left. Standard library only: the zygotes import it."""

from __future__ import annotations

import contextlib
import fcntl
import os

from retcon.sandbox.jail import scratch

LOCK = "lock"
"""The name in it of the file that its pool keeps locked for as long as it lives."""


def remove_abandoned(folder: str) -> None:
    """Remove this folder of this user's if its pool is gone; one that is in use stays, silently, and so does one that
    others may write to: no pool makes such a one, and a call may have given it the name."""
    with contextlib.suppress(OSError):  # another process removes it too, or it is in use
        facts = os.stat(folder, follow_symlinks=False)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            return
        lock = os.open(f"{folder}/{LOCK}", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(folder)
        finally:
            os.close(lock)


def remove(folder: str) -> None:
    """A folder with all that is in it; no link is followed, and what a call moved there from elsewhere stays, and the
    folder with it (`scratch.empty_open`).

    What a call has left may be deeper than Python recurses, and closed to its owner.
    """
    with contextlib.suppress(OSError):  # it is gone, or what is still ending writes to it: a later pool removes it
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            scratch.empty_open(top)
        finally:
            os.close(top)
        os.rmdir(folder)
