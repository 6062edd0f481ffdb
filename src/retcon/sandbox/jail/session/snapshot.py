"""A scratch folder as it was: taken into memory, and put back exactly. Standard library only: the workers import it.

Copies are held by the worker and not in the folder's own file system: the cells that come after a snapshot cannot
reach it, and it does not eat into their space. Times and sizes are not trusted to tell whether a file has changed, as
writing through a mapping leaves both alone; contents are compared, and what is equal is held once. The tree may be made
by hostile code and this process may have more rights than it had: see `beneath`, and `keeper`, which gives those up.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from typing import NamedTuple

from retcon.sandbox.jail import scratch
from retcon.sandbox.jail.session.beneath import FOLDER, Beneath

MAX_DEPTH = 32
CHUNK = 1 << 20


class Entry(NamedTuple):
    """A file, folder, link or fifo. content: of a file; target: of a symbolic link, or of a further hard link the path
    in this snapshot of the first."""

    mode: int
    modified: int
    inode: int
    content: bytes | None = None
    target: str | None = None

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.mode)


class Snapshot:
    """What a folder held. size: bytes of its files. Sockets are left out.

    root: the folder's descriptor, which stays the caller's. Raises OSError where it cannot be read, is nested deeper
    than 32 folders, or holds more than `cap` bytes. Nothing may write to it meanwhile.
    """

    def __init__(self, root: int, beneath: Beneath, cap: int, before: Snapshot | None = None) -> None:
        self.entries: dict[str, Entry] = {}
        self.size = 0
        self._beneath = beneath
        self._cap = cap
        self._before = before.entries if before else {}
        self._first: dict[int, str] = {}
        facts = os.stat(root)
        self._mode, self._modified = facts.st_mode, facts.st_mtime_ns
        self._read_folder(root, "")
        self._before, self._first = {}, {}

    def _read_folder(self, folder: int, path: str) -> None:
        if path.count("/") > MAX_DEPTH:
            raise OSError(f"the scratch folder is nested deeper than {MAX_DEPTH} folders")
        for name in sorted(os.listdir(folder)):
            self._read(folder, name, path + name)

    def _read(self, folder: int, name: str, path: str) -> None:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        kind = stat.S_IFMT(facts.st_mode)
        entry = Entry(facts.st_mode, facts.st_mtime_ns, facts.st_ino)
        if kind == stat.S_IFDIR:
            self.entries[path] = entry
            with self._beneath.opened(folder, name, FOLDER, 0o500) as fd:
                self._read_folder(fd, path + "/")
        elif kind == stat.S_IFLNK:
            self.entries[path] = entry._replace(target=os.readlink(name, dir_fd=folder))
        elif kind == stat.S_IFREG and facts.st_nlink > 1 and facts.st_ino in self._first:
            self.entries[path] = entry._replace(target=self._first[facts.st_ino])
        elif kind == stat.S_IFREG:
            self._first[facts.st_ino] = path
            self.entries[path] = entry._replace(content=self._content(folder, name, facts.st_size, path))
        elif kind == stat.S_IFIFO:
            self.entries[path] = entry

    def _content(self, folder: int, name: str, size: int, path: str) -> bytes:
        self.size += size
        if self.size > self._cap:
            raise OSError(f"the scratch folder holds more than {self._cap >> 20} MiB")
        content = b""
        if size:
            with (
                self._beneath.opened(folder, name, os.O_RDONLY, 0o400) as fd,
                open(fd, "rb", buffering=0, closefd=False) as file,
            ):
                content = file.read(size)
        old = self._before.get(path)
        kept = None if old is None else old.content
        return kept if kept is not None and kept == content else content

    def restore(self, root: int) -> None:
        """Make the folder what it was. Files that are still the same file are rewritten in place, so that whoever holds
        them open or mapped sees what they held; but not those that have a name outside of this folder, or another
        owner: they are left alone, and a file of the same content takes their name. Nothing may write to it meanwhile.
        Raises OSError."""
        links: Counter[int] = Counter()
        os.fchmod(root, 0o700)
        self._remove_others(root, "", links)
        _Restored(self.entries, self._beneath, links).put(root)
        os.fchmod(root, stat.S_IMODE(self._mode))
        os.utime(root, ns=(self._modified, self._modified))

    def _remove_others(self, folder: int, path: str, links: Counter[int]) -> None:
        """Remove what was not there, or was another file, below the folder of that path. links: are counted there, by
        inode, of what stays."""
        for name in os.listdir(folder):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            entry = self.entries.get(path + name)
            if entry is not None and (entry.inode, entry.kind) != (facts.st_ino, stat.S_IFMT(facts.st_mode)):
                entry = None
            if stat.S_ISDIR(facts.st_mode):
                with self._beneath.opened(folder, name, FOLDER, 0o700) as fd:
                    if entry is None:
                        scratch.empty_open(fd)  # which may be deeper than any that a snapshot takes
                    else:
                        self._remove_others(fd, f"{path}{name}/", links)
                if entry is None:
                    os.rmdir(name, dir_fd=folder)
            elif entry is None:
                os.unlink(name, dir_fd=folder)
            else:
                links[facts.st_ino] += 1


class _Restored:
    """Puts entries back into a folder from which all others are gone."""

    def __init__(self, entries: dict[str, Entry], beneath: Beneath, links: Counter[int]) -> None:
        self._entries = entries
        self._beneath = beneath
        self._links = links
        self._owner = os.geteuid()
        self._open: list[tuple[str, int]] = []  # the folders on the way to the present entry, and their descriptors

    def put(self, root: int) -> None:
        facts = os.stat(root)
        self._owner = facts.st_uid
        self._open = [("", root)]
        try:
            for path, entry in self._entries.items():  # a folder before what lies in it
                folder = self._enter(path)
                self._put(folder, os.path.basename(path), path, entry)
            self._enter("")
        finally:
            for _, fd in self._open[1:]:
                os.close(fd)

    def _enter(self, path: str) -> int:
        """The folder of `path`. Those that are left get their mode and time: what lies in a folder changes its time."""
        wanted = os.path.dirname(path)
        while self._open[-1][0] and not f"{wanted}/".startswith(f"{self._open[-1][0]}/"):
            name, fd = self._open.pop()
            entry = self._entries[name]
            try:
                os.fchmod(fd, stat.S_IMODE(entry.mode))
                os.utime(fd, ns=(entry.modified, entry.modified))
            finally:
                os.close(fd)
        return self._open[-1][1]

    def _put(self, folder: int, name: str, path: str, entry: Entry) -> None:
        """Make one entry; one that is there is of the same kind."""
        there = _facts(folder, name)
        if stat.S_ISDIR(entry.mode):
            if there is None:
                os.mkdir(name, 0o700, dir_fd=folder)
            with self._beneath.opened(folder, name, FOLDER, 0o700) as fd:
                self._open.append((path, os.dup(fd)))
            os.fchmod(self._open[-1][1], 0o700)
        elif stat.S_ISLNK(entry.mode):
            if there is None:
                os.symlink(entry.target or "", name, dir_fd=folder)
            os.utime(name, ns=(entry.modified, entry.modified), dir_fd=folder, follow_symlinks=False)
        elif stat.S_ISFIFO(entry.mode):
            if there is None:
                os.mkfifo(name, 0o600, dir_fd=folder)
            self._finish(folder, name, entry)
        elif entry.target is not None:
            self._link(folder, name, entry.target, there)
        elif entry.content is not None:
            self._write(folder, name, entry, entry.content, there)

    def _link(self, folder: int, name: str, target: str, there: os.stat_result | None) -> None:
        """A further name of a file that was put back before."""
        with contextlib.ExitStack() as ways:
            first = self._open[0][1]
            *parts, source = target.split("/")
            for part in parts:
                first = ways.enter_context(self._beneath.opened(first, part, FOLDER, 0o700))
            facts = os.stat(source, dir_fd=first, follow_symlinks=False)
            if there is not None and there.st_ino != facts.st_ino:
                os.unlink(name, dir_fd=folder)
                there = None
            if there is None:
                os.link(source, name, src_dir_fd=first, dst_dir_fd=folder, follow_symlinks=False)

    def _write(self, folder: int, name: str, entry: Entry, content: bytes, there: os.stat_result | None) -> None:
        """In place where the file that is there is the session's alone."""
        if there is not None and (there.st_uid != self._owner or there.st_nlink > self._links[there.st_ino]):
            os.unlink(name, dir_fd=folder)
            there = None
        if there is None:
            os.close(self._beneath.open(folder, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with self._beneath.opened(folder, name, os.O_WRONLY, 0o200) as fd:
            left = memoryview(content)
            while left:
                left = left[os.write(fd, left[:CHUNK]) :]
            os.ftruncate(fd, len(content))
        self._finish(folder, name, entry)

    def _finish(self, folder: int, name: str, entry: Entry) -> None:
        """Mode and time."""
        pinned = self._beneath.pin(folder, name)
        try:
            if os.fstat(pinned).st_mode != entry.mode:
                self._beneath.set_mode(pinned, entry.mode)
        finally:
            os.close(pinned)
        os.utime(name, ns=(entry.modified, entry.modified), dir_fd=folder, follow_symlinks=False)


def _facts(folder: int, name: str) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    return None
