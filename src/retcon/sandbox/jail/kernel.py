"""Linux system calls that the standard library lacks, through ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Iterator

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 36, 38, 47
PR_GET_TID_ADDRESS = 40
PR_CAP_AMBIENT_RAISE = 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
ALL_SIGNALS = (1 << 64) - 1
"""Signal mask, in which signal 1 is the lowest bit."""

_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000

_X86 = os.uname().machine == "x86_64"  # at import: a cell may replace `os.uname`
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_holding = ctypes.PyDLL(None, use_errno=True)  # its functions do not let other Python threads run
_holding.syscall.restype = ctypes.c_long


def checked(result: int, what: str) -> int:
    """Return a system call's result. Raises OSError with `what` if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_uint64] | None, what: str) -> int:
    """Make a system call by number. Raises OSError with `what`."""
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(_libc.syscall(ctypes.c_long(number), *given), what)


def prctl(option: int, *arguments: int | ctypes.c_void_p) -> None:
    given = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    given += [ctypes.c_ulong(0)] * (4 - len(given))
    checked(_libc.prctl(option, *given), f"prctl {option}")


def unshare(flags: int) -> None:
    checked(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    given = None if options is None else options.encode()
    checked(_libc.mount(*encoded, ctypes.c_ulong(flags), given), f"mount {target}")


def make_read_only(path: str, more: int = MOUNT_ATTR_NODEV) -> None:
    """Remount `path` and all below it read-only, nosuid, and with `more`."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | more, 0, 0, 0)
    what = f"mount_setattr {path}"
    size = ctypes.sizeof(attributes)
    syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, attributes, size, what=what)


def change_root(path: str) -> None:
    """Make the mount `path` the root; detach the old root."""
    os.chdir(path)
    checked(_libc.syscall(ctypes.c_long(_pivot_root()), b".", b"."), "pivot_root")
    checked(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def _pivot_root() -> int:
    return 155 if _X86 else 41


def set_capabilities(kept: int | None) -> None:
    """Give up all capabilities except `kept`, which child programs inherit."""
    mask = 0 if kept is None else 1 << kept
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    checked(_libc.capset(header, sets), "capset")
    if kept is not None:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, kept)


def has_capability(number: int) -> bool:
    """Whether a capability is in this process's effective set."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()
    checked(_libc.capget(header, sets), "capget")
    return bool(sets[0] >> number & 1)


@contextlib.contextmanager
def file_rights(uid: int) -> Iterator[None]:
    """Access files as user and group `uid` within the block.

    See setfsuid(2) and capabilities(7). It drops supplementary groups for good, and clears PR_SET_PDEATHSIG. Raises
    OSError.
    """
    os.setgroups([])
    own = (os.getegid(), os.geteuid())
    try:
        _set_file_rights(uid, uid)
        yield
    finally:
        _set_file_rights(*own)


def _set_file_rights(gid: int, uid: int) -> None:
    for change, wanted in ((_libc.setfsgid, gid), (_libc.setfsuid, uid)):
        change(ctypes.c_uint(wanted))  # returns the old id, and no error
        if change(ctypes.c_uint(0xFFFFFFFF)) != wanted:
            raise OSError(errno.EPERM, f"cannot take the rights of user {wanted} on files")


def clone_sibling() -> int:
    """Fork a sibling: a child of this process's parent. Returns 0 in it, like fork(2).

    For a process with one thread, in which no other thread holds locks: no fork handlers run. Only the C library's
    thread id is corrected in the new process, if the kernel can tell where it is. Raises OSError.
    """
    note, flags = ctypes.c_void_p(), _CLONE_PARENT | signal.SIGCHLD
    with contextlib.suppress(OSError):
        prctl(PR_GET_TID_ADDRESS, ctypes.cast(ctypes.byref(note), ctypes.c_void_p))
        flags |= _CLONE_CHILD_CLEARTID | _CLONE_CHILD_SETTID
    number = 56 if _X86 else 220
    # the last two are (ctid, tls) or (tls, ctid), by machine; without its flag tls is ignored
    given = [ctypes.c_long(a) for a in (number, flags, 0, 0, note.value or 0, note.value or 0)]
    return checked(_holding.syscall(*given), "clone")


def mask_signals(blocked: int) -> int:
    """Set the mask of blocked signals; return the old one. Raises OSError.

    Unlike `pthread_sigmask` it includes the C library's own, 32 and 33, which end a process without a handler.
    """
    set_mask, before = 2, (ctypes.c_uint64 * 1)()
    number = 14 if _X86 else 135
    syscall(number, set_mask, (ctypes.c_uint64 * 1)(blocked), before, 8, what="rt_sigprocmask")
    return before[0]


def drop_signals() -> None:
    """Discard pending blocked signals."""
    number = 128 if _X86 else 137
    every, at_once = (ctypes.c_uint64 * 1)(ALL_SIGNALS), (ctypes.c_uint64 * 2)()
    with contextlib.suppress(BlockingIOError):
        while True:
            syscall(number, every, None, at_once, 8, what="rt_sigtimedwait")
