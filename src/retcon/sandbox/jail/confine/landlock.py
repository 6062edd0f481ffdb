"""Landlock: unprivileged limits on files, TCP ports, sockets and signals.

A ruleset is made once per worker; applying it to a call's process is one system call. The kernel's ABI version tells
what it supports, which is then tried (`isolate`), as some kernels claim too much.

Kernel documentation userspace-api/landlock; man page landlock(7).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Iterable

from retcon.sandbox.jail import kernel
from retcon.sandbox.jail.confine.seccomp import number

# access to files, by the ABI that brought it
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ABI_1 = (1 << 13) - 1
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_FILES = {1: _ABI_1, 2: _ABI_1 | REFER, 3: _ABI_1 | REFER | TRUNCATE, 5: _ABI_1 | REFER | TRUNCATE | IOCTL_DEVICE}
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract sockets, signals
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE

READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE
SCRATCH = (_ABI_1 | REFER | TRUNCATE) & ~(_MAKE_CHAR | _MAKE_SOCK | _MAKE_BLOCK)

ABOVE_STREAMS = 16  # a call's process puts its streams in the places of the first descriptors
KNOWN_ABI = 7
REFER_ABI, TCP_ABI, SCOPE_ABI = 2, 4, 6
_QUIET_ABI, _QUIET = 7, 1  # do not fill the audit log with what was denied


def abi() -> int:
    """Return the kernel's ABI version, at most `KNOWN_ABI`. Raises OSError without Landlock."""
    version_flag = 1
    offered = kernel.syscall(_number("landlock_create_ruleset"), None, 0, version_flag, what="Landlock")
    return min(offered, KNOWN_ABI)


class Ruleset:
    """Landlock ruleset, which can be applied to any number of processes.

    version: ABI to use. files: allow only the accesses that `allow` lists; without it, all of the file system stays
    allowed except writing below /proc, and only other processes are closed: their memory, environment and files in
    /proc (as to ptrace), and from ABI 6 on signals and abstract sockets.
    """

    def __init__(self, version: int, *, files: bool) -> None:
        """Create the ruleset. Raises OSError."""
        self.version = version
        known = _FILES[max(v for v in _FILES if v <= version)]
        self.handled = known if files else known & (REFER | WRITE_FILE)  # REFER is denied unless allowed
        self.scoped = version >= SCOPE_ABI
        attributes = [self.handled]
        if version >= TCP_ABI:
            attributes.append(_TCP)
        if self.scoped:
            attributes.append(_SCOPES)
        packed = struct.pack(f"={len(attributes)}Q", *attributes)
        made = kernel.syscall(_number("landlock_create_ruleset"), packed, len(packed), 0, what="Landlock ruleset")
        self._fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, ABOVE_STREAMS)
        os.close(made)
        if not files:
            self.allow(["/"], REFER)
            self.allow((f"/{name}" for name in os.listdir("/") if name != "proc"), WRITE_FILE)

    def allow(self, paths: Iterable[str], access: int) -> None:
        """Allow access beneath `paths`, as far as supported. Missing paths are skipped."""
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError):
                continue
            try:
                of_path = access if stat.S_ISDIR(os.fstat(fd).st_mode) else access & _OF_A_FILE
                rule = struct.pack("=Qi", of_path & self.handled, fd)
                beneath = 1
                kernel.syscall(_number("landlock_add_rule"), self._fd, beneath, rule, 0, what=f"Landlock rule {path}")
            finally:
                os.close(fd)

    def apply(self) -> None:
        """Restrict this thread and its descendants for good. Needs no-new-privs; raises OSError."""
        flags = _QUIET if self.version >= _QUIET_ABI else 0
        kernel.syscall(_number("landlock_restrict_self"), self._fd, flags, what="Landlock")


def _number(name: str) -> int:
    found = number(name, os.uname().machine)
    if found is None:
        raise OSError(errno.ENOSYS, f"Landlock: no system call numbers for {os.uname().machine}")
    return found
