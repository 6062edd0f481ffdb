"""System call filters: classic BPF programs, put together here, that the kernel runs at each system call.

A worker puts the base filter on itself, once: all its calls inherit it and pay nothing. A second, smaller one is put on
each call's process where the tier lacks what would hold otherwise. Filters stack: a call is allowed where all allow it.

Man page seccomp(2); kernel documentation userspace-api/seccomp_filter. Linux on x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable

from retcon.sandbox.jail import kernel
from retcon.sandbox.jail.confine.commands import command_rules
from retcon.sandbox.jail.confine.instructions import (
    ALLOW,
    AND,
    ARCH,
    EQUAL,
    GREATER,
    KILL,
    LOAD,
    NR,
    SET,
    Instruction,
    Rule,
    argument,
    give,
    only_zero,
    refuse,
    upper,
)
from retcon.sandbox.jail.confine.syscalls import ARCHITECTURES, HIGHEST, number

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020000  # NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET, NEWNS
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_TCP, _UDP = 6, 17
_SOCK_TYPE, _SOCK_STREAM = 0xF, 1
_SOL_SOCKET, _SO_SNDBUF, _SO_RCVBUF, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 1, 7, 8, 32, 33

DENIED = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "process_mrelease",
    "pidfd_getfd",
    "kcmp",
    "move_pages",
    "migrate_pages",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "move_mount",
    "open_tree",
    "open_tree_attr",
    "mount_setattr",
    "statmount",
    "listmount",
    "swapon",
    "swapoff",
    "quotactl",
    "quotactl_fd",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "add_key",
    "request_key",
    "keyctl",
    "vmsplice",
    "lookup_dcookie",
    "fanotify_init",
    "fanotify_mark",
    "inotify_init",
    "inotify_init1",
    "inotify_add_watch",
    "modify_ldt",
    "uselib",
    "sysfs",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "reboot",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "acct",
    "syslog",
    "vhangup",
    "sethostname",
    "setdomainname",
    "iopl",
    "ioperm",
    "lsm_set_self_attr",
    "open_by_handle_at",
    "name_to_handle_at",
    "shmget",
    "shmat",
    "shmctl",
    "shmdt",
    "semget",
    "semctl",
    "semop",
    "semtimedop",
    "msgget",
    "msgctl",
    "msgsnd",
    "msgrcv",
    "mq_open",
    "mq_unlink",
]
ABSENT = [
    "clone3",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "memfd_create",
    "memfd_secret",
    "file_setattr",
    "io_setup",
]
"""As if the kernel were older: libraries know what to do without (clone3's flags could not be looked at; requests of
io_setup are a bounded number for the whole machine)."""
UNSUPPORTED = [
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
]
"""As if the file system had no attributes: a default ACL on a shared folder would reach the next call."""
SKIPPED = ["sync", "syncfs"]
"""They seem to succeed: one that any descriptor allows has the machine's own file systems written out, time and again,
and what a call writes need not outlive it."""
OWN_ONLY = ["sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"]
"""Allowed on the caller, whose id is 0 here; the worker has the same user in some tiers."""


def base_rules() -> list[Rule]:
    """What no call needs, in any tier."""
    rules = command_rules()
    rules += [(name, [refuse(errno.EPERM)]) for name in DENIED]
    rules += [(name, [refuse(errno.ENOSYS)]) for name in ABSENT]
    rules += [(name, [refuse(errno.EOPNOTSUPP)]) for name in UNSUPPORTED]
    rules += [(name, [refuse(0)]) for name in SKIPPED]
    rules += [(name, only_zero(0, errno.EPERM)) for name in OWN_ONLY]
    rules += [
        ("setpriority", [*only_zero(0, errno.EPERM), *only_zero(1, errno.EPERM)]),  # PRIO_PROCESS is 0
        ("ioprio_set", [argument(0), (EQUAL, 1, 0, 1), refuse(errno.EPERM), *only_zero(1, errno.EPERM)]),
        ("clone", [argument(0), (SET, 0, 1, _CLONE_NEW), refuse(errno.EPERM)]),
        ("personality", [argument(0), (EQUAL, 2, 0, 0xFFFFFFFF), (EQUAL, 1, 0, 0), refuse(errno.EPERM)]),
        (
            "socket",
            [
                argument(0),
                (EQUAL, 8, 0, _AF_UNIX),
                (EQUAL, 2, 0, _AF_INET),
                (EQUAL, 1, 0, _AF_INET6),
                refuse(errno.EAFNOSUPPORT),
                argument(2),  # others have buffers of their own, which `loopback` does not bound
                (EQUAL, 3, 0, 0),
                (EQUAL, 2, 0, _TCP),
                (EQUAL, 1, 0, _UDP),
                refuse(errno.EPROTONOSUPPORT),
            ],
        ),
        # the kernel's memory for what waits in sockets counts nowhere: they keep the size that they are made with
        (
            "setsockopt",
            [
                argument(1),
                (EQUAL, 0, 6, _SOL_SOCKET),
                argument(2),
                (EQUAL, 3, 0, _SO_SNDBUF),
                (EQUAL, 2, 0, _SO_RCVBUF),
                (EQUAL, 1, 0, _SO_SNDBUFFORCE),
                (EQUAL, 0, 1, _SO_RCVBUFFORCE),
                refuse(0),
            ],
        ),
        # a timer can send any signal, SIGCONT too, with which a stopped process would wake itself
        ("timer_create", [*only_zero(1, errno.EPERM), upper(1), (EQUAL, 1, 0, 0), refuse(errno.EPERM)]),
    ]
    return rules


def no_sockets() -> list[Rule]:
    """No socket but a connected pair: UDP, netlink and paths of the host's sockets are out of Landlock's reach."""
    pair = [argument(1), (AND, 0, 0, _SOCK_TYPE), (EQUAL, 1, 0, _SOCK_STREAM), refuse(errno.EACCES)]
    return [("socket", [refuse(errno.EACCES)]), ("socketpair", pair)]


def no_processes() -> list[Rule]:
    """Threads alone: what was never started cannot be left behind."""
    return [
        ("fork", [refuse(errno.EPERM)]),
        ("vfork", [refuse(errno.EPERM)]),
        ("clone", [argument(0), (SET, 1, 0, CLONE_THREAD), refuse(errno.EPERM)]),
    ]


def own_signals(pid: int) -> list[Rule]:
    """Signals to process `pid` alone."""
    own = [argument(0), (EQUAL, 1, 0, pid), refuse(errno.EPERM)]
    rules: list[Rule] = [(name, own) for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")]
    return rules + [(name, [refuse(errno.EPERM)]) for name in ("tkill", "pidfd_send_signal")]


def no_metadata() -> list[Rule]:
    """Modes, owners and times: Landlock does not guard them, and the user's own files would be open to it, those that
    it may read by a descriptor too, such as this Python's.

    They seem to succeed: copying a file sets its copy's mode and times, and must not fail for that. But to set a path's
    times to now fails, as `Path.touch` makes a file only where that did.
    """
    names = ["chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"]
    names += ["utime", "utimes", "futimesat"]
    times = [argument(2), (EQUAL, 0, 7, 0), upper(2), (EQUAL, 0, 5, 0)]  # a pointer, 0 for now
    path = [argument(1), (EQUAL, 0, 2, 0), upper(1), (EQUAL, 1, 0, 0)]  # 0 for the descriptor's file
    touch = [*times, *path, refuse(errno.EPERM), refuse(0)]
    return [*((name, [refuse(0)]) for name in names), ("utimensat", touch)]


def assemble(rules: Iterable[Rule], machine: str) -> list[Instruction]:
    """The program: foreign architectures end the process, unknown calls are ENOSYS, then the rules, then yes.

    Raises OSError (ENOSYS) for a machine whose numbers are not known here.
    """
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: no system call numbers for {machine}, only {', '.join(ARCHITECTURES)}")
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCH),
        (EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        give(KILL),
        (LOAD, 0, 0, NR),
        (GREATER, 0, 1, HIGHEST),  # those of the x32 ABI too, which begin at 0x40000000
        refuse(errno.ENOSYS),
    ]
    for name, body in rules:
        wanted = number(name, machine)
        if wanted is not None:
            whole = [*body, give(ALLOW)] if len(body) > 1 else body
            program += [(EQUAL, 0, len(whole), wanted), *whole]
    program.append(give(ALLOW))
    return program


class Filter:
    """A program in the form in which the kernel takes it, made once and put on many processes."""

    def __init__(self, rules: Iterable[Rule], machine: str | None = None) -> None:
        """Raises OSError (ENOSYS) as `assemble` does."""
        program = assemble(rules, machine or os.uname().machine)
        self._code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
        head = struct.pack("@HP", len(program), ctypes.addressof(self._code))
        self._head = ctypes.create_string_buffer(head, len(head))

    def apply(self) -> None:
        """For this thread and all that it starts, for good. It must have no-new-privs. Raises OSError."""
        mode_filter = 2
        kernel.prctl(kernel.PR_SET_SECCOMP, mode_filter, ctypes.c_void_p(ctypes.addressof(self._head)))
