"""A folder that hostile code has filled: names in it are opened one by one, through no link and into no other mount.

Standard library only. What is opened is held by its descriptor, and whatever is done to it is done by that: a name is
never used twice. Kernel documentation: openat2(2), open(2) on O_PATH, proc_pid_fd(5).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator

from retcon.sandbox.jail import kernel

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
