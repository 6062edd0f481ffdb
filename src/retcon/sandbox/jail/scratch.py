"""Measuring, emptying and collecting files of calls. Standard library only: the workers import it."""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import io
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FolderUsage(NamedTuple):
    """Size of a folder's content. size: bytes on disk."""

    size: int
    entries: int


def empty_folder(top: int) -> None:
    """Empty a folder, given by descriptor, whatever modes and depth it has.

    Folders of other owners keep their content: a call without its own root may have moved one here that it may not
    empty. No process that could write there may run. Raises OSError if something stays, after removing all else.
    """
    prefix = os.urandom(8).hex()
    moved = 0
    found = _folders_alone(top)
    stays: OSError | None = None
    while found:
        name = found.pop()
        _open_up(name, top)
        inner = os.open(name, _FOLDER, dir_fd=top)
        try:
            for entry in _folders_alone(inner):  # moved to the top, so that no path grows long
                moved += 1
                _move(entry, inner, f"{prefix}{moved}", top)
                found.append(f"{prefix}{moved}")
        finally:
            os.close(inner)
        try:
            os.rmdir(name, dir_fd=top)
        except OSError as error:
            stays = error
    if stays is not None:
        raise stays


def _folders_alone(folder: int) -> list[str]:
    """Remove a folder's files, and return its folders that are to be emptied: its owner's, or all if it is this
    process's own. Others are removed if empty, as their parent's owner could do that too."""
    owner = os.fstat(folder).st_uid
    found = []
    for name in os.listdir(folder):
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(facts.st_mode):
            os.unlink(name, dir_fd=folder)
        elif owner in (os.geteuid(), facts.st_uid):
            found.append(name)
        else:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=folder)
    return found


def _open_up(name: str, parent: int) -> None:
    """Give the owner all rights to a file, without following links.

    No process should run that could put a link there; but if one outlived all attempts to end it, this process may have
    more rights.
    """
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
    except FileNotFoundError:  # a container without /proc, in which the kernel has ended the call's processes
        os.chmod(name, 0o700, dir_fd=parent)
    finally:
        os.close(place)


def _move(name: str, source: int, to: str, target: int) -> None:
    try:
        os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:  # a folder that its owner may not write
        _open_up(name, source)
        os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)


def measure(folder: str, most: int) -> FolderUsage:
    """Measure a folder, up to `most` entries, during writes to it.

    Folders are walked by descriptor, at any depth and wherever they are moved meanwhile. One that is closed to its
    owner is opened while it is walked, also if it is closed again. Raises OSError, with the name of a folder that stays
    closed, or of an entry of one that is closed again and again.
    """
    size = entries = 0
    linked: set[int] = set()  # files that have several names, by inode
    here: _Folder | None = _Folder(os.open(folder, _FOLDER), None, [])
    left: list[_Folder] = []
    try:
        while here is not None:
            left.append(here)
            with os.scandir(here.fd) as found:
                for entry in found:
                    entries += 1
                    if entries > most:
                        return FolderUsage(size, entries)
                    if entry.is_dir(follow_symlinks=False):
                        here.names.append(entry.name)
                        continue
                    try:
                        size += _blocks(entry, linked)
                    except PermissionError:
                        left[-1] = here.opened()
                        size += _blocks(entry, linked)
            here = _next_folder(left)
    finally:
        for one in left:
            one.leave()
    return FolderUsage(size, entries)


class _Folder(NamedTuple):
    """An open folder. mode: before it was opened up, None if it was not.

    names: of its folders that are still to be entered.
    """

    fd: int
    mode: int | None
    names: list[str]

    def opened(self) -> _Folder:
        """Return the folder opened up again, after it was closed meanwhile."""
        mode = stat.S_IMODE(os.fstat(self.fd).st_mode)
        os.chmod(self.fd, mode | 0o500)
        return self._replace(mode=mode)

    def leave(self) -> None:
        if self.mode is not None and stat.S_IMODE(os.fstat(self.fd).st_mode) == self.mode | 0o500:
            os.chmod(self.fd, self.mode)
        os.close(self.fd)


def _next_folder(left: list[_Folder]) -> _Folder | None:
    """Return the next folder to enter, None at the end.

    A folder is closed when its last one is entered, so that a deep tree takes few descriptors.
    """
    while left:
        above = left[-1]
        found = None
        if above.names:
            name = above.names.pop()
            try:
                found = _open_folder(name, above.fd)
            except PermissionError:
                left[-1] = above.opened()
                found = _open_folder(name, above.fd)
        if not above.names:
            left.pop().leave()
        if found is not None:
            return found
    return None


def _blocks(entry: os.DirEntry[str], linked: set[int]) -> int:
    """Return a file's bytes on disk; 0 for another name of one in `linked`, or a deleted one."""
    try:
        facts = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if facts.st_nlink > 1:
        if facts.st_ino in linked:
            return 0
        linked.add(facts.st_ino)
    return facts.st_blocks * 512


def _open_folder(name: str, parent: int) -> _Folder | None:
    """Open a folder, whatever its mode; None if it is gone.

    Its mode is changed by descriptor, so that no link is followed and no other file changed.
    """
    try:
        place = os.open(name, _FOLDER | os.O_PATH, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    try:
        way = f"/proc/self/fd/{place}"
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        closed = os.geteuid() != 0 and mode & 0o500 != 0o500
        if closed:
            os.chmod(way, mode | 0o500)
        return _Folder(os.open(way, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), mode if closed else None, [])
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error
    finally:
        os.close(place)


# Collecting files that a call has written.
#
# The worker reads them after all processes of the call have ended, with more rights than they had. So it follows no
# symbolic link on any component of a path, and opens only regular files.

TOTAL_BYTES = 8 << 20
"""Most bytes of a call's collected files together."""

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block the worker


def collect(scratch: str, paths: Sequence[str], room: int = TOTAL_BYTES) -> dict[str, str]:
    """Read files, by path, as base64, up to `room` bytes; skip unreadable ones.

    They are below `scratch`; absolute paths are in the worker's own root (`paths.inside_scratch`).
    """
    found = {}
    for path in paths:
        try:
            content = _read(scratch, path, room)
        except OSError:  # missing, a link, or without permission: treated as missing
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


LOCK = "lock"
"""Name of a folder's file that its pool locks while it lives."""


def remove_abandoned(folder: str) -> None:
    """Remove a folder whose pool is gone.

    One that is in use, another user's or writable by others stays: no pool makes the latter, but a call may."""
    with contextlib.suppress(OSError):  # it is in use, or another process removes it too
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
    """Remove a folder and its content, without following links.

    The content may be deeper than Python recurses, and closed to its owner. Foreign folders stay (`empty_folder`).
    """
    with contextlib.suppress(OSError):  # gone, or a dying process writes to it: a later pool removes it
        top = os.open(folder, _FOLDER)
        try:
            empty_folder(top)
        finally:
            os.close(top)
        os.rmdir(folder)
