"""A scratch folder as it was: taken into memory, and put back exactly. Standard library only: the workers import it.

Copies are held by the worker and not in the folder's own file system: the cells that come after a snapshot cannot
reach it, and it does not eat into their space. Times and sizes are not trusted to tell whether a file has changed, as
writing through a mapping leaves both alone; contents are compared, and what is equal is held once. The tree may be made
by hostile code and this process may have more rights than it had: see `beneath`, and `keeper`, which gives those up.
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

# A folder that hostile code has filled: names in it are opened one by one, through no link and into no other mount.
#
# What is opened is held by its descriptor, and whatever is done to it is done by that: a name is
# never used twice. Kernel documentation: openat2(2), open(2) on O_PATH, proc_pid_fd(5).

FOLDER = os.O_RDONLY | os.O_DIRECTORY
_SYS_OPENAT2 = 437  # the same number on every architecture
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x1, 0x2, 0x4, 0x8
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH


class Beneath:
    """Opens names in folders that are open. proc: descriptor of a /proc.

    Where the kernel has no openat2 (it came with Linux 5.6), or a container's filter forbids it, a single name that is
    opened with O_NOFOLLOW ends at the same file; only another mount would not be noticed, and a call can make none.
    """

    def __init__(self, proc: int) -> None:
        self._proc = proc
        self._openat2 = True
        try:
            os.close(self.open(proc, "self", os.O_PATH))
        except OSError:
            self._openat2 = False

    def open(self, folder: int, name: str, flags: int, mode: int = 0) -> int:
        """A name without a slash. It does not wait, for a fifo's other end or for a lease to be given up.

        Raises OSError.
        """
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC | (0 if flags & os.O_PATH else os.O_NONBLOCK)
        if not self._openat2:
            return os.open(name, flags, mode, dir_fd=folder)
        how = (ctypes.c_uint64 * 3)(flags, mode, _RESOLVE)
        size = ctypes.sizeof(how)
        return kernel.syscall(_SYS_OPENAT2, folder, os.fsencode(name), how, size, what=repr(name))

    def pin(self, folder: int, name: str) -> int:
        """The same, for its mode and its facts alone: whatever it is, and however closed. Raises OSError."""
        return self.open(folder, name, os.O_PATH)

    @contextlib.contextmanager
    def opened(self, folder: int, name: str, flags: int, needed: int) -> Iterator[int]:
        """As `open`, of a file or folder that its own mode may close: that mode it has again afterwards.

        needed: the bits of the mode that its owner needs meanwhile. Raises OSError.
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
                raise OSError(errno.EPERM, f"{name!r} is no file")
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
        """Of what is pinned or open; a link has none. Raises OSError."""
        os.chmod(f"self/fd/{pinned}", stat.S_IMODE(mode), dir_fd=self._proc)


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


MOST_BYTES = 64 << 20  # that a checkpoint can keep of each folder

FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EROFS)
"""What keeps files from being put back that is the machine's, where it does not bound what a session writes."""


class FilesNotRestored(Exception):
    """The session's own code keeps its files from being put back; says how."""


class Writable:
    """The writable folders of a worker, held by their descriptors: a session may move the scratch folder away, or put
    a link in its place."""

    def __init__(self, confinement: Confinement, folder: str) -> None:
        """folder: for scratch, is made. To be called before anything of the session runs. Raises OSError."""
        os.mkdir(folder, 0o700)
        self._scratch, self._user, self._bounded = folder, confinement.become, confinement.bounded
        # where calls have a user of their own, all but the scratch folder is closed to it
        paths = confinement.writable if confinement.become is None else (folder,)
        self._folders = [os.open(path, FOLDER | os.O_NOFOLLOW | os.O_CLOEXEC) for path in paths]
        self._beneath = Beneath(confinement.proc)

    def take(self, before: list[Snapshot] | None) -> list[Snapshot]:
        """What they hold. before: what they held once, to hold once what is the same. Raises OSError."""
        olds: list[Snapshot | None] = [*before] if before else [None] * len(self._folders)
        with self._as_user():
            return [
                Snapshot(folder, self._beneath, MOST_BYTES, old)
                for folder, old in zip(self._folders, olds, strict=True)
            ]

    def restore(self, snapshots: list[Snapshot]) -> None:
        """Raises FilesNotRestored, and OSError where the machine is at fault."""
        try:
            with self._as_user():
                for folder, snapshot in zip(self._folders, snapshots, strict=True):
                    snapshot.restore(folder)
        except OSError as error:
            if self._bounded or error.errno not in FAULTS:
                raise FilesNotRestored(str(error)) from error
            raise

    def collect(self, paths: list[str]) -> dict[str, str]:
        """Path to content in base64, of those `paths` that can be handed back (`scratch.collect`). Raises OSError."""
        with self._as_user():
            return scratch.collect(self._scratch, paths)

    @contextlib.contextmanager
    def _as_user(self) -> Iterator[None]:
        """With the rights on files that the session's own processes have, and no more."""
        if self._user is None:
            yield
            return
        try:
            with kernel.file_rights(self._user):
                yield
        finally:
            die_with_parent()
