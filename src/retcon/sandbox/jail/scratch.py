"""Measuring and emptying what calls wrote. Standard library only: the workers import it."""

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


class Held(NamedTuple):
    """What a folder holds. size: bytes on disk."""

    size: int
    entries: int


def empty_open(top: int) -> None:
    """Remove all that is in a folder, given by its descriptor, whatever the modes in it and however deep.

    What is in a folder of another owner stays: a call without a root of its own may have moved it here from where it
    may write, and not be allowed to remove what is in it. Nothing may run that could write there. Raises OSError where
    something stays, once all else is gone.
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
            for entry in _folders_alone(inner):  # up to the top, so that no path grows long
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
    """Remove the files of a folder, and return the folders in it that are to be emptied: those of its owner, and all
    where it is this process's own. Others go where they are empty, as their parent's owner could do that too."""
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
    """Give the owner of a file all rights to it; of a link itself, and not of what it points to.

    Nothing should run that could put a link there. But should a process of a call outlive all attempts to end it, this
    one may have more rights.
    """
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
    except FileNotFoundError:  # a container without a /proc, in which the kernel has ended all processes of the call
        os.chmod(name, 0o700, dir_fd=parent)
    finally:
        os.close(place)


def _move(name: str, source: int, to: str, target: int) -> None:
    try:
        os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)
    except PermissionError:  # a folder that its owner may not write
        _open_up(name, source)
        os.rename(name, to, src_dir_fd=source, dst_dir_fd=target)


def measure(folder: str, most: int) -> Held:
    """What is beneath, counted until there are more than `most` entries, while others may write to it.

    Folders are walked by their descriptors: however deep they lie, and wherever they are moved meanwhile. One that is
    closed to its owner is open while it is walked, also where it is closed meanwhile. Raises OSError, with the name of
    a folder that stays closed, or of what is in one that is closed again and again.
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
                        return Held(size, entries)
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
    return Held(size, entries)


class _Folder(NamedTuple):
    """An open folder. mode: what it had before it was opened up, None where it was not.

    names: of the folders in it that are still to be entered.
    """

    fd: int
    mode: int | None
    names: list[str]

    def opened(self) -> _Folder:
        """The same, opened up again: it was closed since it was entered."""
        mode = stat.S_IMODE(os.fstat(self.fd).st_mode)
        os.chmod(self.fd, mode | 0o500)
        return self._replace(mode=mode)

    def leave(self) -> None:
        if self.mode is not None and stat.S_IMODE(os.fstat(self.fd).st_mode) == self.mode | 0o500:
            os.chmod(self.fd, self.mode)
        os.close(self.fd)


def _next_folder(left: list[_Folder]) -> _Folder | None:
    """The next to be entered, None where none is left.

    A folder is closed when its last one is entered: a deep tree takes few descriptors.
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
    """Bytes that a file takes on disk; 0 for another name of one in `linked`, and for one that is gone meanwhile."""
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
    """A folder, whatever its mode; None where there is no such folder any more.

    Its owner may give it another mode. That is done by a descriptor: through no link, and to no other file.
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


# Handing back files that a call has written.
#
# The worker reads them, with more rights than the call had and after all processes of the call have ended. So it
# follows no symbolic link, on no component of a path, and opens nothing but ordinary files.

TOTAL_BYTES = 8 << 20
"""What one call may hand back, all its files together."""

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
    folder with it (`empty_open`).

    What a call has left may be deeper than Python recurses, and closed to its owner.
    """
    with contextlib.suppress(OSError):  # it is gone, or what is still ending writes to it: a later pool removes it
        top = os.open(folder, _FOLDER)
        try:
            empty_open(top)
        finally:
            os.close(top)
        os.rmdir(folder)
