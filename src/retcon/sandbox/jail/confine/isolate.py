"""Isolation of a worker, applied once before it runs anything. Linux and standard library only.

- `namespaces`: process 1 of namespaces of its own (process, mount, network, IPC, host name, and user where it is not
  root), in a root file system that shows only what Python needs (`root`), as an unprivileged user without capabilities.
- `landlock`: no namespace; each call gives up what Landlock guards, and a filter closes what that does not.
- `rlimits`: limits, a user of its own where root started it, and, where the kernel has them, a filter and a Landlock
  domain that closes other processes. On request only.

A system call filter is on the worker in all of them, so that its calls inherit it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable

from retcon.sandbox.jail import kernel
from retcon.sandbox.jail.confine import cgroup, landlock, root, seccomp
from retcon.sandbox.jail.confine.confinement import Confinement, bring_up_loopback
from retcon.sandbox.jail.confine.users import (
    OVERFLOW_UID,
    become,
    closed_to_others,
    count_tasks,
    may_be_shared,
    pick_uid,
    why_not_become,
)
from retcon.sandbox.jail.usage import MachineKills

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
SPACES = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS

SAME_USER_ABI = 3  # before it, Landlock lets read-only files be truncated
SLACK = 64  # tasks that the user starts after they were counted
TASKS = 1024  # of a worker's cgroup: each call has its own, lower limit
OPEN_FILES = 16384  # of the worker itself, which walks folders as deep as calls make them
QUEUED_SIGNALS = 512  # and timers, in the kernel's memory, of a user who may have other processes

HELP = {
    "namespaces": "allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns) or give CAP_SYS_ADMIN; in a container its seccomp and AppArmor "
    "profiles have to allow them as well",
    "landlock": "it needs Linux 6.2, or 5.13 as root, with landlock among the boot parameter lsm=",
    "rlimits": "it needs Linux, and Python where other users can read it",
}


def isolate(folder: str, tier: str, uid: int | None = None) -> Confinement:
    """Isolate this process by `tier`; "": the best contained one.

    Call it in a new process with one thread, after all imports of this package. folder: an empty one, for scratch or as
    mount point. uid: user of the calls if this process is root, None to pick one; other users stay themselves.

    In the tier `namespaces` it returns in a child (process 1 of the namespace; the caller waits for it and ends), in
    the other tiers in the caller. Raises OSError, with what to do, if the tier is unavailable.
    """
    if uid is None and os.geteuid() == 0:
        uid = pick_uid()
    if not tier:
        tier = _best(folder, uid)
    confinement = Confinement(tier, folder)
    set_limits()
    with contextlib.suppress(OSError):  # hidden in some containers
        confinement.kills = MachineKills(os.open("/proc/vmstat", os.O_RDONLY | os.O_CLOEXEC))
    try:
        confinement.group = cgroup.join(str(os.getpid()), TASKS)
    except OSError as error:
        confinement.no_group = _reason(error)
    try:
        _TIERS[tier](confinement, uid)
        _apply_common_limits(confinement)
    except OSError as error:
        raise OSError(f"tier {tier!r} is unavailable here ({_reason(error)}): {HELP[tier]}") from error
    return confinement


def try_tier(folder: str, tier: str, uid: int | None) -> str:
    """Try a tier in a temporary process; return why it is unavailable, "" if it works."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = ""
        confinement = Confinement(tier, folder)
        try:
            _TIERS[tier](confinement, uid)
            _apply_common_limits(confinement)
            os.mkdir(f"{confinement.root}/try")
            confinement.take_user(f"{confinement.root}/try")
            confinement.confine_call()
            answer = "+"
        except OSError as error:
            answer = _reason(error)
        finally:
            os.write(writes, answer.encode())
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(pid, 0)
    if os.path.isdir(f"{folder}/try"):
        os.rmdir(f"{folder}/try")
    return "" if answer == "+" else answer or "the process that tried it died"


def set_limits() -> None:
    """Set the worker's limits, which its calls inherit.

    The limit on core dumps is 1 byte, and the filter keeps it there: any other, 0 included, starts a handler behind a
    pipe in the machine's core_pattern (core(5); `coredump_pipe` in the kernel's fs/coredump.c).
    """
    with contextlib.suppress(ValueError):  # the hard limit is 0, and this user may not raise it
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES if hard < 0 else min(hard, OPEN_FILES), hard))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent thread ends. A change of user undoes it."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def _best(folder: str, uid: int | None) -> str:
    problems = []
    for tier in ("namespaces", "landlock"):
        problem = try_tier(folder, tier, uid)
        if not problem:
            return tier
        problems.append(f"{tier}: {problem}; {HELP[tier]}")
    raise OSError(
        "no tier that contains calls is available here. " + ". ".join(problems) + ". Or ask for tier='rlimits', which "
        "limits calls but leaves files and processes open to them"
    )


def _reason(error: OSError) -> str:
    return str(error.args[-1]) if error.filename is None else f"{error.strerror}: {error.filename}"


def _namespaces(confinement: Confinement, uid: int | None) -> None:
    own_user = uid is not None
    if uid is None:
        _unshare_as_user()
    else:
        try:
            kernel.unshare(SPACES)
        except OSError as error:  # root without CAP_SYS_ADMIN, as in most containers, is like any user
            if (closed := _closed_folder()) is not None:
                raise OSError(f"{_reason(error)}, and user {uid} cannot enter {closed}, where Python is") from error
            become(uid)
            uid = None
            die_with_parent()
            _unshare_as_user()
    with contextlib.suppress(OSError):  # some containers do not allow setting its buffers
        confinement.traffic = bring_up_loopback()
    _become_init()
    outside = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    entered = root.enter(confinement.root, os.getuid() if uid is None else uid, uid)
    if entered.proc:
        os.close(outside)
        outside = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    confinement.proc = outside
    if uid is not None:
        become(uid)
    kernel.set_capabilities(None)
    with open(os.__file__):  # check that this user can read Python in this root
        pass
    confinement.writable, confinement.root, confinement.bounded = entered.writable, entered.writable[0], True
    confinement.folders = entered.folders
    confinement.network = confinement.files = confinement.processes = confinement.kill_reaches = True
    confinement.own_user = own_user
    confinement.tasks = 1 if uid != OVERFLOW_UID else SLACK + count_tasks(OVERFLOW_UID)


def _landlock(confinement: Confinement, uid: int | None) -> None:
    version = landlock.abi()
    if uid is None and version < SAME_USER_ABI:
        raise OSError(f"the kernel's Landlock is of ABI {version}, and this needs {SAME_USER_ABI}")
    _leave_user_to_calls(confinement, uid, (kernel.CAP_DAC_READ_SEARCH, kernel.CAP_DAC_OVERRIDE))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    rules = landlock.Ruleset(version, files=True)
    rules.allow([*root.readable(), "/proc/cpuinfo"], landlock.READ)  # by which libraries choose code
    rules.allow(root.DEVICES, landlock.DEVICE)
    rules.allow([confinement.root], landlock.SCRATCH)
    confinement.ruleset = rules
    if rules.scoped:
        landlock.Ruleset(version, files=False).apply()
        confinement.kill_reaches = _parent_is_out_of_reach()
    confinement.only_own_signals = may_be_shared(uid) and not confinement.kill_reaches
    confinement.network = confinement.files = confinement.processes = True


def _rlimits(confinement: Confinement, uid: int | None) -> None:
    _leave_user_to_calls(confinement, uid, (kernel.CAP_DAC_READ_SEARCH,))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    with contextlib.suppress(OSError):
        if (version := landlock.abi()) >= landlock.REFER_ABI:  # before it, any ruleset keeps files in their folder
            landlock.Ruleset(version, files=False).apply()
            confinement.processes = True


_TIERS: dict[str, Callable[[Confinement, int | None], None]] = {
    "namespaces": _namespaces,
    "landlock": _landlock,
    "rlimits": _rlimits,
}


def _leave_user_to_calls(confinement: Confinement, uid: int | None, capabilities: tuple[int, ...]) -> None:
    """Let calls switch to `uid` themselves, with one of `capabilities` if it cannot read Python otherwise."""
    confinement.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    confinement.become, confinement.own_user = uid, uid is not None
    if uid is None:
        confinement.tasks = SLACK + count_tasks(os.getuid())
        return
    if problem := why_not_become(uid):
        raise OSError(f"calls cannot become user {uid}: {problem}")
    confinement.mode = 0o711  # to pass through, to a scratch folder that is theirs
    confinement.tasks = SLACK + count_tasks(uid) if uid == OVERFLOW_UID else 0
    if (closed := _closed_folder()) is not None:
        confinement.keeps = next(filter(kernel.has_capability, capabilities), None)
        if confinement.keeps is None:
            raise OSError(f"user {uid} cannot enter {closed}, where Python is")


def _closed_folder() -> str | None:
    """Return the folder that keeps other users from this Python, if any."""
    needed = (sys.base_prefix, *filter(os.path.isdir, sys.path))
    return next(filter(None, map(closed_to_others, needed)), None)


def _apply_common_limits(confinement: Confinement) -> None:
    """Apply the limits that all tiers share.

    The signal queue is limited only here: a user namespace then has its own queue, apart from the user's.
    """
    hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (QUEUED_SIGNALS if hard < 0 else min(hard, QUEUED_SIGNALS),) * 2)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # a call of the same uid cannot attach to the worker or read its memory
    die_with_parent()
    try:
        seccomp.Filter(seccomp.base_rules()).apply()
        if confinement.tier != "namespaces":
            rules = seccomp.no_sockets() + seccomp.no_allocation()
            if confinement.tier == "landlock" and not confinement.own_user:
                rules += seccomp.no_metadata()
            confinement.only_own_signals |= confinement.tier == "rlimits" and may_be_shared(confinement.become)
            confinement.of_sessions = seccomp.Filter(rules)
            confinement.of_calls = seccomp.Filter(rules + seccomp.no_processes())
            confinement.network = True
        confinement.system_calls = True
    except OSError:
        if confinement.tier != "rlimits":
            raise


def _unshare_as_user() -> None:
    uid, gid = os.getuid(), os.getgid()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # after a change of user /proc/self would belong to root
    kernel.unshare(SPACES | CLONE_NEWUSER)
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def _become_init() -> None:
    """Continue as process 1 of the new PID namespace: when it ends, the kernel ends all its descendants."""
    pid = os.fork()
    if pid:
        os.closerange(3, 256)
        os.waitpid(pid, 0)
        os._exit(0)


def _parent_is_out_of_reach() -> bool:
    """Whether signals really are scoped: some kernels claim it wrongly, and a sweep must not rely on it."""
    parent = os.getppid()
    if parent == 0:  # in another PID namespace: it cannot be tried
        return False
    try:
        os.kill(parent, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        return False
    return False
