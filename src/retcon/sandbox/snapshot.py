"""A scratch folder as it was: taken into memory, and put back exactly. Standard library only: the workers import it.

Copies are held by the worker and not in the folder's own file system: the cells that come after a snapshot cannot
reach it, and it does not eat into their space. Times and sizes are not trusted to tell whether a file has changed, as
writing through a mapping leaves both alone; contents are compared, and what is equal is held once. The tree may be made
by hostile code and this process may have more rights than it had: names are opened relative to their folder, and no
link is followed.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from retcon.sandbox import scratch

MAX_DEPTH = 32
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1 << 20


class Entry(NamedTuple):
    """A file, folder, link or fifo. content: of a file; target: of a symbolic link, or of a further hard link the path
    in this snapshot of the first."""

    mode: int
    owner: tuple[int, int]
    modified: int
    inode: int
    content: bytes | None = None
    target: str | None = None

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.mode)


class Snapshot:
    """What a folder held. size: bytes of its files. Sockets are left out.

    Raises OSError where it cannot be read, is nested deeper than 32 folders, or holds more than `cap` bytes.
    """

    def __init__(self, root: str, cap: int, before: Snapshot | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.size = 0
        self._cap = cap
        self._before = before.entries if before else {}
        self._first: dict[int, str] = {}
        fd = os.open(root, FOLDER)
        try:
            self._mode, self._modified = _facts(fd)
            self._read_folder(fd, "")
        finally:
            os.close(fd)
            self._before, self._first = {}, {}

    def _read_folder(self, folder: int, path: str) -> None:
        if path.count("/") > MAX_DEPTH:
            raise OSError(f"the scratch folder is nested deeper than {MAX_DEPTH} folders")
        for name in sorted(os.listdir(folder)):
            self._read(folder, name, path + name)

    def _read(self, folder: int, name: str, path: str) -> None:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = stat.S_IFMT(facts.st_mode)
        entry = Entry(facts.st_mode, (facts.st_uid, facts.st_gid), facts.st_mtime_ns, facts.st_ino)
        if kind == stat.S_IFDIR:
            self.entries[path] = entry
            fd = _open(folder, name, facts.st_mode, FOLDER)
            try:
                self._read_folder(fd, path + "/")
            finally:
                os.close(fd)
        elif kind == stat.S_IFLNK:
            self.entries[path] = entry._replace(target=os.readlink(name, dir_fd=folder))
        elif kind == stat.S_IFREG and facts.st_nlink > 1 and facts.st_ino in self._first:
            self.entries[path] = entry._replace(target=self._first[facts.st_ino])
        elif kind == stat.S_IFREG:
            self._first[facts.st_ino] = path
            self.entries[path] = entry._replace(content=self._content(folder, name, facts, path))
        elif kind == stat.S_IFIFO:
            self.entries[path] = entry

    def _content(self, folder: int, name: str, facts: os.stat_result, path: str) -> bytes:
        self.size += facts.st_size
        if self.size > self._cap:
            raise OSError(f"the scratch folder holds more than {self._cap >> 20} MiB")
        fd = _open(folder, name, facts.st_mode, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb", buffering=0) as file:
            content: bytes = file.read(facts.st_size)
        old = self._before.get(path)
        kept = None if old is None else old.content
        return kept if kept is not None and kept == content else content

    def restore(self, root: str) -> None:
        """Make the folder what it was. Files that are still the same file are rewritten in place, so that whoever holds
        them open or mapped sees what they held. Nothing may write to it meanwhile. Raises OSError."""
        fd = os.open(root, FOLDER)
        try:
            self._remove_others(fd, "")
            for path, entry in self.entries.items():
                folder = _parent(fd, path)
                try:
                    self._put(fd, folder, os.path.basename(path), entry)
                finally:
                    os.close(folder)
            for path, entry in reversed(self.entries.items()):  # what lies in a folder changes its time
                if stat.S_ISDIR(entry.mode):
                    folder = _parent(fd, path)
                    try:
                        _finish(folder, os.path.basename(path), entry)
                    finally:
                        os.close(folder)
            os.chmod(fd, stat.S_IMODE(self._mode))
            os.utime(fd, ns=(self._modified, self._modified))
        finally:
            os.close(fd)

    def _remove_others(self, folder: int, path: str) -> None:
        """Remove what was not there, or was another file, below the folder of that path."""
        os.chmod(folder, 0o700)
        for name in os.listdir(folder):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            entry = self.entries.get(path + name)
            if entry is not None and (entry.inode, entry.kind) != (facts.st_ino, stat.S_IFMT(facts.st_mode)):
                entry = None
            if stat.S_ISDIR(facts.st_mode):
                fd = _open(folder, name, facts.st_mode, FOLDER)
                try:
                    if entry is None:
                        os.chmod(fd, 0o700)
                        scratch.empty_open(fd)  # which may be deeper than any that a snapshot takes
                    else:
                        self._remove_others(fd, f"{path}{name}/")
                finally:
                    os.close(fd)
                if entry is None:
                    os.rmdir(name, dir_fd=folder)
            elif entry is None:
                os.unlink(name, dir_fd=folder)

    def _put(self, root: int, folder: int, name: str, entry: Entry) -> None:
        """Make one entry; one that is there is of the same kind."""
        there = _exists(folder, name)
        if stat.S_ISDIR(entry.mode):
            if not there:
                os.mkdir(name, 0o700, dir_fd=folder)
            return  # its mode and time come when it is filled
        if entry.content is not None:
            _write(folder, name, entry.content, there)
        elif stat.S_ISFIFO(entry.mode) and not there:
            os.mkfifo(name, 0o600, dir_fd=folder)
        elif stat.S_ISLNK(entry.mode) and not there:
            os.symlink(entry.target or "", name, dir_fd=folder)
        elif stat.S_ISREG(entry.mode) and not there and entry.target is not None:
            first = _parent(root, entry.target)
            try:
                os.link(os.path.basename(entry.target), name, src_dir_fd=first, dst_dir_fd=folder)
            finally:
                os.close(first)
        _finish(folder, name, entry)


def _facts(fd: int) -> tuple[int, int]:
    facts = os.stat(fd)
    return facts.st_mode, facts.st_mtime_ns


def _open(folder: int, name: str, mode: int, flags: int) -> int:
    """Open what may be unreadable by its own mode."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        _chmod(folder, name, mode | 0o700)
        try:
            return os.open(name, flags, dir_fd=folder)
        finally:
            _chmod(folder, name, mode)


def _chmod(folder: int, name: str, mode: int) -> None:
    """`name` is known to be no link, and nothing runs that could make it one."""
    os.chmod(name, stat.S_IMODE(mode), dir_fd=folder)


def _parent(root: int, path: str) -> int:
    """The folder of `path`, opened step by step."""
    fd = os.dup(root)
    for part in path.split("/")[:-1]:
        try:
            below = os.open(part, FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(folder: int, name: str, content: bytes, there: bool) -> None:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if there else os.O_CREAT | os.O_EXCL)
    if there:
        _chmod(folder, name, 0o600)
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(fd, left[:CHUNK]) :]
        os.ftruncate(fd, len(content))
    finally:
        os.close(fd)


def _finish(folder: int, name: str, entry: Entry) -> None:
    """Owner, mode and time."""
    facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if (facts.st_uid, facts.st_gid) != entry.owner:
        os.chown(name, *entry.owner, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(entry.mode):
        _chmod(folder, name, entry.mode)
    os.utime(name, ns=(entry.modified, entry.modified), dir_fd=folder, follow_symlinks=False)
