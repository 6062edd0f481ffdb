"""System calls of which some uses reach beyond the process: commands of `fcntl`, `ioctl`, `prctl`, `mmap` and others.

A lease makes the host's own `open` of a file wait; an owner of a descriptor is sent signals; a lock on a file that may
only be read is one on the host's file; memory that is shared and has no name outlives its mapping and counts for no
process. Numbers from the kernel's include/uapi, the same on x86_64 and aarch64.
"""

from __future__ import annotations

import errno
import signal

from retcon.sandbox.jail import kernel
from retcon.sandbox.jail.confine.instructions import (
    ALLOW,
    EQUAL,
    SET,
    Instruction,
    Rule,
    argument,
    give,
    only_zero,
    refuse,
    upper,
    where_one_of,
    where_within,
)

_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ = 1024, 1026, 1031
_F_SET_RW_HINT, _F_SET_FILE_RW_HINT = 1036, 1038
_OFD_LOCKS = (36, 37, 38)
FCNTL_REFUSED = (
    *(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ),
    *(_F_SET_RW_HINT, _F_SET_FILE_RW_HINT),
)
"""Pipes keep the size that they are made with: the kernel's memory for them counts for no process."""

_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD, _FIOASYNC = 0x5412, 0x541C, 0x541D, 0x5423, 0x5452
IOCTL_REFUSED = (_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD, _FIOASYNC)
IOCTL_ALLOWED = (
    (0x5401, 0x545F),  # terminals and what every descriptor knows: TCGETS to FIOCLEX, FIONREAD and FIONBIO among them
    (0x8903, 0x8907),  # of sockets: owner, mark and time; their neighbours below set an owner
    (0x8910, 0x8940),  # network interfaces, of its own namespace or behind a socket that cannot be opened
    (0x80045430, 0x80045432),  # a pseudoterminal's number, exclusiveness and lock
    (0x40045431, 0x40045431),
)
"""All others are answered as by a file that knows no commands. A file system's own work on files that may only be read:
attributes, verity, encryption, defragmentation."""

_PR_SET_MM, _PR_SCHED_CORE, _PR_SET_MEMORY_MERGE, _PR_SET_PTRACER = 35, 62, 67, 0x59616D61
PRCTL_REFUSED = (_PR_SET_MM, _PR_SCHED_CORE, _PR_SET_MEMORY_MERGE, _PR_SET_PTRACER)

_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_MADV_PAGEOUT = 21
_RLIMIT_CORE = 4


def command_rules() -> list[Rule]:
    """In every tier. The calls that programs make most come first: a filter is read from its start."""
    return [
        ("mmap", _mmap()),
        ("madvise", [argument(2), *where_one_of([_MADV_PAGEOUT], refuse(errno.EINVAL))]),
        ("ioctl", _ioctl()),
        ("fcntl", _fcntl()),
        ("flock", [refuse(errno.EOPNOTSUPP)]),
        ("prctl", _prctl()),
        ("setrlimit", [argument(0), *where_one_of([_RLIMIT_CORE], refuse(0))]),
        ("prlimit64", [*only_zero(0, errno.EPERM), *_core_limit()]),
    ]


def no_allocation() -> list[Rule]:
    """Where nothing but looking bounds the disk: room that is taken without being written. glibc writes zeros then."""
    return [("fallocate", [refuse(errno.EOPNOTSUPP)])]


def _mmap() -> list[Instruction]:
    """No memory that is shared and anonymous: unmapped but for a page, all of it stays and counts nowhere.

    Nor huge pages, which are the machine's few and no part of a process's resident memory.
    """
    shared = [(SET, 0, 2, _MAP_SHARED), (SET, 0, 1, _MAP_ANONYMOUS), refuse(errno.EPERM)]
    return [argument(3), *shared, (SET, 0, 1, _MAP_HUGETLB), refuse(errno.ENOMEM)]


def _ioctl() -> list[Instruction]:
    allowed = [line for low, high in IOCTL_ALLOWED for line in where_within(low, high, give(ALLOW))]
    return [argument(1), *where_one_of(IOCTL_REFUSED, refuse(errno.EPERM)), *allowed, refuse(errno.ENOTTY)]


def _fcntl() -> list[Instruction]:
    return [
        argument(1),
        *where_one_of(FCNTL_REFUSED, refuse(errno.EPERM)),
        *where_one_of(_OFD_LOCKS, refuse(errno.EINVAL)),
    ]


def _prctl() -> list[Instruction]:
    return [
        argument(0),
        *where_one_of(PRCTL_REFUSED, refuse(errno.EPERM)),
        # the worker's end ends its calls: one may ask for SIGKILL again, and not out of it
        (EQUAL, 0, 3, kernel.PR_SET_PDEATHSIG),
        argument(1),
        (EQUAL, 1, 0, signal.SIGKILL),
        refuse(errno.EPERM),
        # its memory stays closed to its user's other processes, and to the host's handler of core dumps
        argument(0),
        (EQUAL, 0, 3, kernel.PR_SET_DUMPABLE),
        argument(1),
        (EQUAL, 1, 0, 0),
        refuse(errno.EPERM),
    ]


def _core_limit() -> list[Instruction]:
    """The limit on core dumps stays what it is (`isolate`): reading it, without a new one, is allowed."""
    no_new = [argument(2), (EQUAL, 0, 2, 0), upper(2), (EQUAL, 1, 0, 0)]
    return [argument(1), (EQUAL, 0, len(no_new) + 1, _RLIMIT_CORE), *no_new, refuse(0)]
