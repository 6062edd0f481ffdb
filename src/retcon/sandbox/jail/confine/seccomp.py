"""System call filters (seccomp), assembled here as classic BPF programs.

A worker applies the base filter to itself, once: all its calls inherit it for free. In weaker tiers each call's process
gets a second, smaller one. Filters stack: a system call is allowed if all of them allow it.

Man page seccomp(2); kernel documentation userspace-api/seccomp_filter. Linux on x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Iterable, Sequence

from retcon.sandbox.jail import kernel

KILL, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
NR, ARCH, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; both architectures are little-endian
LOAD, EQUAL, GREATER, SET, AND, RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06

Instruction = tuple[int, int, int, int]
"""(operation, instructions to skip if it holds, if it does not, operand)"""
Rule = tuple[str, Sequence[Instruction]]
"""A system call's name, and its instructions; if they fall through, it is allowed."""


def give(action: int) -> Instruction:
    return (RETURN, 0, 0, action)


def refuse(code: int) -> Instruction:
    """Fail the call with errno `code` without making it; with 0 it seems to succeed."""
    return give(ERRNO | code)


def argument(index: int) -> Instruction:
    """Load the lower half of an argument, all that an int has."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * index)


def upper(index: int) -> Instruction:
    """Load the upper half of an argument, for pointers."""
    return (LOAD, 0, 0, ARGUMENTS + 8 * index + 4)


def only_zero(index: int, code: int) -> list[Instruction]:
    return [argument(index), (EQUAL, 1, 0, 0), refuse(code)]


def where_one_of(values: Sequence[int], action: Instruction) -> list[Instruction]:
    """Take `action` if the loaded value is among `values`."""
    last = len(values) - 1
    tests = [(EQUAL, last - place, int(place == last), value) for place, value in enumerate(values)]
    return [*tests, action]


def where_within(low: int, high: int, action: Instruction) -> list[Instruction]:
    """Take `action` if the loaded value is in [`low`, `high`]; low > 0."""
    return [(GREATER, 0, 2, low - 1), (GREATER, 1, 0, high), action]


# System calls with uses that reach beyond the process: commands of `fcntl`, `ioctl`, `prctl`, `mmap` and others.
#
# A lease makes the host's own `open` of a file wait; a descriptor's owner gets signals; a lock on a read-only file is
# one on the host's file; shared anonymous memory outlives its mapping and counts for no process. Numbers from the
# kernel's include/uapi, the same on x86_64 and aarch64.

_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ = 1024, 1026, 1031
_F_SET_RW_HINT, _F_SET_FILE_RW_HINT = 1036, 1038
_OFD_LOCKS = (36, 37, 38)
FCNTL_REFUSED = (
    *(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETLEASE, _F_NOTIFY, _F_SETPIPE_SZ),
    *(_F_SET_RW_HINT, _F_SET_FILE_RW_HINT),
)
"""Pipes keep their initial size, as the kernel's memory for them counts for no process."""

_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD, _FIOASYNC = 0x5412, 0x541C, 0x541D, 0x5423, 0x5452
IOCTL_REFUSED = (_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD, _FIOASYNC)
IOCTL_ALLOWED = (
    (0x5401, 0x545F),  # terminals and generic ones: TCGETS to FIOCLEX, with FIONREAD and FIONBIO
    (0x8903, 0x8907),  # of sockets: owner, mark and time; the numbers below set an owner
    (0x8910, 0x8940),  # network interfaces, of its own namespace or unreachable without a socket
    (0x80045430, 0x80045432),  # a pseudoterminal's number, exclusiveness and lock
    (0x40045431, 0x40045431),
)
"""All others fail as on a file without ioctls: they let a file system work on read-only files (attributes, verity,
encryption, defragmentation)."""

_PR_SET_MM, _PR_SCHED_CORE, _PR_SET_MEMORY_MERGE, _PR_SET_PTRACER = 35, 62, 67, 0x59616D61
PRCTL_REFUSED = (_PR_SET_MM, _PR_SCHED_CORE, _PR_SET_MEMORY_MERGE, _PR_SET_PTRACER)

_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_MADV_PAGEOUT = 21
_RLIMIT_CORE = 4


def command_rules() -> list[Rule]:
    """Return the rules on arguments for every tier, most frequent calls first."""
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
    """Forbid fallocate where only polling limits the disk. glibc writes zeros then."""
    return [("fallocate", [refuse(errno.EOPNOTSUPP)])]


def _mmap() -> list[Instruction]:
    """Forbid shared anonymous memory: if all but a page is unmapped, all of it stays and counts nowhere.

    Also huge pages, which are scarce and not part of a process's resident memory.
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
        # a worker's end ends its calls: they may only set SIGKILL again
        (EQUAL, 0, 3, kernel.PR_SET_PDEATHSIG),
        argument(1),
        (EQUAL, 1, 0, signal.SIGKILL),
        refuse(errno.EPERM),
        # its memory stays closed to its user's other processes and to the host's core dump handler
        argument(0),
        (EQUAL, 0, 3, kernel.PR_SET_DUMPABLE),
        argument(1),
        (EQUAL, 1, 0, 0),
        refuse(errno.EPERM),
    ]


def _core_limit() -> list[Instruction]:
    """Keep the limit on core dumps (`isolate`); reading it is allowed."""
    no_new = [argument(2), (EQUAL, 0, 2, 0), upper(2), (EQUAL, 1, 0, 0)]
    return [argument(1), (EQUAL, 0, len(no_new) + 1, _RLIMIT_CORE), *no_new, refuse(0)]


_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020000  # NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET, NEWNS
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_TCP, _UDP = 6, 17
_SOCK_TYPE, _SOCK_STREAM = 0xF, 1
_SOL_SOCKET, _SO_SNDBUF, _SO_RCVBUF, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 1, 7, 8, 32, 33


def _calls(table: str) -> dict[str, tuple[int | None, int | None]]:
    """Parse a table of numbers on x86_64 and aarch64: `name=both` or `name=x86_64/aarch64`, `-` if missing."""
    found: dict[str, tuple[int | None, int | None]] = {}
    for name, numbers in (entry.split("=") for entry in table.split()):
        x86, arm = (None if one == "-" else int(one) for one in (numbers.split("/") * 2)[:2])
        found[name] = x86, arm
    return found


# From the kernel's own tables (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h); a test
# compares them with the machine's headers if they are installed. From 424 on both are equal.
HIGHEST = 469
"""Highest number known here (Linux 6.17). Higher ones fail with ENOSYS, as on an older kernel."""
DENIED = _calls("""
    ptrace=101/117 process_vm_readv=310/270 process_vm_writev=311/271 process_madvise=440 process_mrelease=448
    pidfd_getfd=438 kcmp=312/272 move_pages=279/239 migrate_pages=256/238 unshare=272/97 setns=308/268
    mount=165/40 umount2=166/39 pivot_root=155/41 chroot=161/51 fsopen=430 fsconfig=431 fsmount=432 fspick=433
    move_mount=429 open_tree=428 open_tree_attr=467 mount_setattr=442 statmount=457 listmount=458 swapon=167/224
    swapoff=168/225 quotactl=179/60 quotactl_fd=443 bpf=321/280 perf_event_open=298/241 userfaultfd=323/282
    add_key=248/217 request_key=249/218 keyctl=250/219 vmsplice=278/75 lookup_dcookie=212/18
    fanotify_init=300/262 fanotify_mark=301/263 inotify_init=253/- inotify_init1=294/26 inotify_add_watch=254/27
    modify_ldt=154/- uselib=134/- sysfs=139/- kexec_load=246/104 kexec_file_load=320/294 init_module=175/105
    finit_module=313/273 delete_module=176/106 reboot=169/142 settimeofday=164/170 clock_settime=227/112
    clock_adjtime=305/266 adjtimex=159/171 acct=163/89 syslog=103/116 vhangup=153/58 sethostname=170/161
    setdomainname=171/162 iopl=172/- ioperm=173/- lsm_set_self_attr=460 open_by_handle_at=304/265
    name_to_handle_at=303/264 shmget=29/194 shmat=30/196 shmctl=31/195 shmdt=67/197 semget=64/190 semctl=66/191
    semop=65/193 semtimedop=220/192 msgget=68/186 msgctl=71/187 msgsnd=69/189 msgrcv=70/188 mq_open=240/180
    mq_unlink=241/181
""")
ABSENT = _calls("""
    clone3=435 io_uring_setup=425 io_uring_enter=426 io_uring_register=427 memfd_create=319/279 memfd_secret=447
    file_setattr=469 io_setup=206/0
""")
"""Fail as on an older kernel, for which libraries have fallbacks (a filter cannot read clone3's flags; io_setup's
requests are limited for the whole machine)."""
UNSUPPORTED = _calls("""
    setxattr=188/5 lsetxattr=189/6 fsetxattr=190/7 setxattrat=463 removexattr=197/14 lremovexattr=198/15
    fremovexattr=199/16 removexattrat=466
""")
"""Fail as on a file system without attributes: a default ACL on a shared folder would affect the next call."""
SKIPPED = _calls("sync=162/81 syncfs=306/267")
"""Seem to succeed: any descriptor allows syncing the machine's own file systems, again and again, and a call's files
need not outlive it."""
OWN_ONLY = _calls("""
    sched_setaffinity=203/122 sched_setscheduler=144/119 sched_setparam=142/118 sched_setattr=314/274
""")
"""Allowed only on the caller (id 0), as the worker has the same user in some tiers."""
_CHECKED = _calls("""
    prlimit64=302/261 setpriority=141/140 ioprio_set=251/30 kill=62/129 tkill=200/130 tgkill=234/131
    rt_sigqueueinfo=129/138 rt_tgsigqueueinfo=297/240 pidfd_send_signal=424 timer_create=222/107 clone=56/220
    fork=57/- vfork=58/- personality=135/92 chmod=90/- fchmod=91/52 fchmodat=268/53 fchmodat2=452 chown=92/-
    fchown=93/55 lchown=94/- fchownat=260/54 utime=132/- utimes=235/- futimesat=261/- utimensat=280/88
    truncate=76/45 fallocate=285/47 fcntl=72/25 flock=73/32 socket=41/198 socketpair=53/199 setsockopt=54/208
    prctl=157/167 ioctl=16/29 mmap=9/222 madvise=28/233 setrlimit=160/164 landlock_create_ruleset=444
    landlock_add_rule=445 landlock_restrict_self=446
""")
"""Judged by their arguments, or named by a filter of one tier."""
NUMBERS = DENIED | ABSENT | UNSUPPORTED | SKIPPED | OWN_ONLY | _CHECKED
ARCHITECTURES = ("x86_64", "aarch64")


def number(name: str, machine: str) -> int | None:
    """Return a system call's number on `machine` (of `os.uname`), if any. Raises KeyError."""
    return NUMBERS[name][ARCHITECTURES.index(machine)] if machine in ARCHITECTURES else None


def base_rules() -> list[Rule]:
    """Return the base rules: denials of what no call needs, in any tier."""
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
                argument(2),  # other protocols have buffers that `bring_up_loopback` does not limit
                (EQUAL, 3, 0, 0),
                (EQUAL, 2, 0, _TCP),
                (EQUAL, 1, 0, _UDP),
                refuse(errno.EPROTONOSUPPORT),
            ],
        ),
        # the kernel's memory for socket buffers counts nowhere: they keep their initial size
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
        # a timer can send any signal, also SIGCONT, by which a stopped process would wake itself
        ("timer_create", [*only_zero(1, errno.EPERM), upper(1), (EQUAL, 1, 0, 0), refuse(errno.EPERM)]),
    ]
    return rules


def no_sockets() -> list[Rule]:
    """Forbid sockets except connected pairs: Landlock does not cover UDP, netlink and socket paths."""
    pair = [argument(1), (AND, 0, 0, _SOCK_TYPE), (EQUAL, 1, 0, _SOCK_STREAM), refuse(errno.EACCES)]
    return [("socket", [refuse(errno.EACCES)]), ("socketpair", pair)]


def no_processes() -> list[Rule]:
    """Allow threads but no processes, so that none is left behind."""
    return [
        ("fork", [refuse(errno.EPERM)]),
        ("vfork", [refuse(errno.EPERM)]),
        ("clone", [argument(0), (SET, 1, 0, CLONE_THREAD), refuse(errno.EPERM)]),
    ]


def own_signals(pid: int) -> list[Rule]:
    """Allow signals to process `pid` only."""
    own = [argument(0), (EQUAL, 1, 0, pid), refuse(errno.EPERM)]
    rules: list[Rule] = [(name, own) for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")]
    return rules + [(name, [refuse(errno.EPERM)]) for name in ("tkill", "pidfd_send_signal")]


def no_metadata() -> list[Rule]:
    """Block changes of modes, owners and times, which Landlock does not cover.

    The user's own files would be open to them, also by descriptors of read-only ones, such as this Python's. They seem
    to succeed, as copying a file sets its copy's mode and times. But setting a path's times to now fails, as
    `Path.touch` creates a file only after that.
    """
    names = ["chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"]
    names += ["utime", "utimes", "futimesat"]
    times = [argument(2), (EQUAL, 0, 7, 0), upper(2), (EQUAL, 0, 5, 0)]  # a pointer, 0 for now
    path = [argument(1), (EQUAL, 0, 2, 0), upper(1), (EQUAL, 1, 0, 0)]  # 0 for the descriptor's file
    touch = [*times, *path, refuse(errno.EPERM), refuse(0)]
    return [*((name, [refuse(0)]) for name in names), ("utimensat", touch)]


def assemble(rules: Iterable[Rule], machine: str) -> list[Instruction]:
    """Assemble a filter: kill foreign architectures, ENOSYS for unknown calls, the rules, then allow.

    Raises OSError (ENOSYS) for a machine of unknown system call numbers.
    """
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: no system call numbers for {machine}, only {', '.join(ARCHITECTURES)}")
    program: list[Instruction] = [
        (LOAD, 0, 0, ARCH),
        (EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        give(KILL),
        (LOAD, 0, 0, NR),
        (GREATER, 0, 1, HIGHEST),  # also those of the x32 ABI, which begin at 0x40000000
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
    """An assembled filter, which can be applied to many processes."""

    def __init__(self, rules: Iterable[Rule], machine: str | None = None) -> None:
        """Assemble the filter. Raises OSError (ENOSYS) as `assemble`."""
        program = assemble(rules, machine or os.uname().machine)
        self._code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
        head = struct.pack("@HP", len(program), ctypes.addressof(self._code))
        self._head = ctypes.create_string_buffer(head, len(head))

    def apply(self) -> None:
        """Restrict this thread and its descendants for good. Needs no-new-privs; raises OSError."""
        mode_filter = 2
        kernel.prctl(kernel.PR_SET_SECCOMP, mode_filter, ctypes.c_void_p(ctypes.addressof(self._head)))
