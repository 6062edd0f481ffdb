"""Snapshots of scratch folders in memory, restored exactly. Standard library only.

The worker holds them, not the folder's own file system: later cells cannot reach a snapshot, and it does not use their
space. Times and sizes do not show whether a file has changed, as writing through a mapping keeps both; contents are
compared, and equal ones are held once. The tree may be made by hostile code, and this process may have more rights: see
`BeneathOpener`, and `keeper`, which drops those.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from retcon.sandbox.jail import kernel, scratch
from retcon.sandbox.jail.confine.confinement import Confinement
from retcon.sandbox.jail.confine.isolate import die_with_parent

# Names in folders of hostile code are opened one by one, without following links or entering other mounts.
#
# All operations use the descriptor: a name is never used twice. Kernel documentation: openat2(2), open(2) on O_PATH,
# proc_pid_fd(5).

FOLDER = os.O_RDONLY | os.O_DIRECTORY
_SYS_OPENAT2 = 437  # the same number on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x1, 0x2, 0x4, 0x8
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH


class BeneathOpener:
    """Opener of names in open folders. proc: descriptor of a /proc.

    Without openat2 (Linux 5.6), or if a container's filter forbids it, O_NOFOLLOW on a single name opens the same file;
    only other mounts would go unnoticed, and a call cannot make any.
    """

    def __init__(self, proc: int) -> None:
        self._proc = proc
        self._openat2 = True
        try:
            os.close(self.open(proc, "self", os.O_PATH))
        except OSError:
            self._openat2 = False

    def open(self, folder: int, name: str, flags: int, mode: int = 0) -> int:
        """Open a name (no slash), without waiting for FIFOs and leases.

        Raises OSError.
        """
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK)
        if not self._openat2:
            return os.open(name, flags, mode, dir_fd=folder)
        how = (ctypes.c_uint64 * 3)(flags, mode, _RESOLVE)
        size = ctypes.sizeof(how)
        return kernel.syscall(_SYS_OPENAT2, folder, os.fsencode(name), how, size, what=repr(name))

    def pin(self, folder: int, name: str) -> int:
        """Open a name with O_PATH, whatever its kind and mode. Raises OSError."""
        return self.open(folder, name, os.O_PATH)

    @contextlib.contextmanager
    def opened(self, folder: int, name: str, flags: int, needed: int) -> Iterator[int]:
        """Open a file or folder, if needed by a temporary mode.

        needed: mode bits that its owner needs meanwhile. Raises OSError.
        """
        try:
            fd = self.open(folder, name, flags)
        except PermissionError:
            fd = -1
        if fd >= 0:
            try:
                if os.fstat(fd).st_mode & needed == needed:
                    yield fd
                    return
            finally:
                os.close(fd)
        pinned = self.pin(folder, name)
        try:
            mode = os.fstat(pinned).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise OSError(errno.EPERM, f"{name!r} is not a file")
            self.set_mode(pinned, mode | needed)
            try:
                fd = os.open(f"self/fd/{pinned}", flags | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._proc)
                try:
                    yield fd
                finally:
                    os.close(fd)
            finally:
                self.set_mode(pinned, mode)
        finally:
            os.close(pinned)

    def set_mode(self, pinned: int, mode: int) -> None:
        """Set the mode of a pinned or open file; links have none. Raises OSError."""
        os.chmod(f"self/fd/{pinned}", stat.S_IMODE(mode), dir_fd=self._proc)


MAX_DEPTH = 32
CHUNK = 1 << 20


class Entry(NamedTuple):
    """A file, folder, link or FIFO. content: of a file. target: of a symbolic link; of a further hard link, the first
    one's path in this snapshot."""

    mode: int
    modified: int
    inode: int
    content: bytes | None = None
    target: str | None = None

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.mode)


class Snapshot:
    """Snapshot of a folder, without sockets. size: bytes of its files.

    root: the folder's descriptor, which the caller keeps. Raises OSError if it cannot be read, is nested deeper than 32
    folders, or holds more than `cap` bytes. Nothing may write to it meanwhile.
    """

    def __init__(self, root: int, beneath: BeneathOpener, cap: int, before: Snapshot | None = None) -> None:
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
        """Restore the folder. Raises OSError. Nothing may write to it meanwhile.

        Files that are still the same are rewritten in place, so that their open descriptors and mappings see the old
        content; but those with a name outside of this folder, or another owner, are replaced by a new file."""
        links: Counter[int] = Counter()
        os.fchmod(root, 0o700)
        self._remove_others(root, "", links)
        _Restorer(self.entries, self._beneath, links).put(root)
        os.fchmod(root, stat.S_IMODE(self._mode))
        os.utime(root, ns=(self._modified, self._modified))

    def _remove_others(self, folder: int, path: str, links: Counter[int]) -> None:
        """Remove new and replaced files below the folder of that path. links: counts the remaining files' names, by
        inode."""
        for name in os.listdir(folder):
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            entry = self.entries.get(path + name)
            if entry is not None and (entry.inode, entry.kind) != (facts.st_ino, stat.S_IFMT(facts.st_mode)):
                entry = None
            if stat.S_ISDIR(facts.st_mode):
                with self._beneath.opened(folder, name, FOLDER, 0o700) as fd:
                    if entry is None:
                        scratch.empty_folder(fd)  # it may be deeper than a snapshot's limit
                    else:
                        self._remove_others(fd, f"{path}{name}/", links)
                if entry is None:
                    os.rmdir(name, dir_fd=folder)
            elif entry is None:
                os.unlink(name, dir_fd=folder)
            else:
                links[facts.st_ino] += 1


class _Restorer:
    """Restorer of entries in a folder from which all others are removed."""

    def __init__(self, entries: dict[str, Entry], beneath: BeneathOpener, links: Counter[int]) -> None:
        self._entries = entries
        self._beneath = beneath
        self._links = links
        self._owner = os.geteuid()
        self._open: list[tuple[str, int]] = []  # folders above the present entry, with descriptors

    def put(self, root: int) -> None:
        facts = os.stat(root)
        self._owner = facts.st_uid
        self._open = [("", root)]
        try:
            for path, entry in self._entries.items():  # folders before their content
                folder = self._enter(path)
                self._put(folder, os.path.basename(path), path, entry)
            self._enter("")
        finally:
            for _, fd in self._open[1:]:
                os.close(fd)

    def _enter(self, path: str) -> int:
        """Return the folder of `path`. Folders that are left get their mode and time, after their content."""
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
        """Restore one entry; an existing one has the same kind."""
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
        """Restore a further name of a restored file."""
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
        """Write a file, in place if the existing one is only the session's."""
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
        """Set mode and time."""
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


MOST_BYTES = 64 << 20  # most bytes of a folder in a checkpoint

FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EROFS)
"""Errors of restoring that are the machine's fault, where it does not limit a session's files."""


class FilesNotRestored(Exception):
    """The session's own code prevents restoring its files."""


class WritableFolders:
    """A worker's writable folders, by descriptor: a session may move the scratch folder away, or replace it by a
    link."""

    def __init__(self, confinement: Confinement, folder: str) -> None:
        """Open the folders, and create `folder` for scratch, before the session runs. Raises OSError."""
        os.mkdir(folder, 0o700)
        self._scratch, self._user, self._bounded = folder, confinement.become, confinement.bounded
        # a call's own user can write only the scratch folder
        paths = confinement.writable if confinement.become is None else (folder,)
        self._folders = [os.open(path, FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC) for path in paths]
        self._beneath = BeneathOpener(confinement.proc)

    def take(self, before: list[Snapshot] | None) -> list[Snapshot]:
        """Take snapshots. before: earlier ones, to share equal contents. Raises OSError."""
        olds: list[Snapshot | None] = [*before] if before else [None] * len(self._folders)
        with self._as_user():
            return [
                Snapshot(folder, self._beneath, MOST_BYTES, old)
                for folder, old in zip(self._folders, olds, strict=True)
            ]

    def restore(self, snapshots: list[Snapshot]) -> None:
        """Restore snapshots. Raises FilesNotRestored, or OSError if the machine is at fault."""
        try:
            with self._as_user():
                for folder, snapshot in zip(self._folders, snapshots, strict=True):
                    snapshot.restore(folder)
        except OSError as error:
            if self._bounded or error.errno not in FAULTS:
                raise FilesNotRestored(str(error)) from error
            raise

    def collect(self, paths: list[str]) -> dict[str, str]:
        """Read files as base64; see `scratch.collect`. Raises OSError."""
        with self._as_user():
            return scratch.collect(self._scratch, paths)

    @contextlib.contextmanager
    def _as_user(self) -> Iterator[None]:
        """Use only the file rights of the session's processes within the block."""
        if self._user is None:
            yield
            return
        try:
            with kernel.file_rights(self._user):
                yield
        finally:
            die_with_parent()
