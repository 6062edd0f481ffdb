"""What a worker gives up, once, before it runs anything. Linux only; standard library only.

With namespaces the worker ends as an unprivileged process 1 of its own process, mount, network and IPC namespaces:
the file system is read-only but for a small tmpfs, there is no network device that is up, and no capability is left.
Without them it sets what any process may set on itself, and as root leaves it to each child to become nobody.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

NOBODY = 65534
SCRATCH_OPTIONS = "mode=0700,size=64m,nr_inodes=8192"
SCRATCH_POINTS = ("/tmp", "/var/tmp", "/mnt", "/media")  # covered by a tmpfs of the worker's own

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
SYS_MOUNT_SETATTR = 442  # the same number on every architecture
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1
CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class World:
    """What holds around the calls of this worker.

    network, files, processes: whether calls are kept from them. own_user: calls do not run as the user who started
    the worker. become: the uid that a child must take itself, None where the worker has it already. root: the folder
    in which scratch folders are made. tasks: how many processes of its uid a child may find already running.
    """

    __slots__ = ("become", "files", "network", "own_user", "processes", "root", "tasks")

    def __init__(self, root: str) -> None:
        self.root = root
        self.network = self.files = self.processes = self.own_user = False
        self.become: int | None = None
        self.tasks = 0

    @property
    def tier(self) -> str:
        return "namespaces" if self.network and self.files and self.processes else "rlimits"


def isolate(root: str, tier: str) -> World:
    """Give up all that this machine lets this process give up, or what `tier` asks for where it is not empty.

    root: folder for scratch where no tmpfs can be had.

    Returns in a child of the process that called (process 1 of the namespace), or in the caller itself without
    namespaces. Raises OSError where a step fails that nothing can replace.
    """
    world = World(root)
    privileged = os.geteuid() == 0
    own_count = False
    if tier != "rlimits" and _enter_namespaces(privileged):
        _become_init()
        world.network = world.processes = True
        covered, fresh_proc = _cover_files(privileged)
        if covered is not None:
            world.root, world.files = covered, True
        if privileged and (world.files or not _closed_ancestor(sys.base_prefix)):
            become(NOBODY)
            world.own_user = True
            own_count = fresh_proc and _own_user_namespace()
        elif not privileged:
            own_count = True
    elif privileged and not _closed_ancestor(sys.base_prefix):
        world.become, world.own_user = NOBODY, True
    if world.become is None:
        _drop_capabilities()
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_DUMPABLE, 0)  # a call of the same uid cannot attach to the worker or read its memory
    die_with_parent()
    world.tasks = 1 if own_count else 64 + _count_tasks(NOBODY if world.own_user else os.getuid())
    return world


def die_with_parent() -> None:
    """SIGKILL to this process when the thread that started it ends. A change of user undoes it."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _prctl(option: int, value: int) -> None:
    _checked(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _enter_namespaces(privileged: bool) -> bool:
    spaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(spaces if privileged else spaces | CLONE_NEWUSER) != 0:
        return False
    if not privileged:
        _map_ids(uid, gid)
    return True


def _map_ids(uid: int, gid: int) -> None:
    for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def _become_init() -> None:
    """Go on as process 1 of the new process namespace: when it ends, the kernel ends all that it ever started."""
    pid = os.fork()
    if pid:
        os.closerange(3, 256)
        os.waitpid(pid, 0)
        os._exit(0)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    _checked(_libc.mount(*encoded, ctypes.c_ulong(flags), options and options.encode()), f"mount {target}")


def _cover_files(privileged: bool) -> tuple[str | None, bool]:
    """(the tmpfs that alone is writable, None if it cannot be had; whether /proc shows only this namespace)."""
    try:
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        closed = _closed_ancestor(sys.base_prefix) if privileged else None
        if closed:
            _open_way(closed, sys.base_prefix)
        attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
        _checked(
            _libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, attributes, ctypes.sizeof(attributes)),
            "mount_setattr",
        )
        point = _scratch_point()
        owner = f",uid={NOBODY},gid={NOBODY}" if privileged else ""
        _mount("tmpfs", point, "tmpfs", MS_NOSUID | MS_NODEV, SCRATCH_OPTIONS + owner)
    except OSError:
        return None, False
    try:
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    except OSError:  # some containers cover parts of /proc, and then no fresh one is allowed
        return point, False
    return point, True


def _scratch_point() -> str:
    needed = (sys.base_prefix, sys.prefix, *sys.path)
    for point in SCRATCH_POINTS:
        if os.path.isdir(point) and not any(path.startswith(point + "/") for path in needed):
            return point
    raise OSError(f"none of {', '.join(SCRATCH_POINTS)} is free for the scratch folder")


def _closed_ancestor(path: str) -> str | None:
    """The outermost folder on the way to `path` that others may not enter."""
    way = os.path.realpath(path)
    closed = None
    while True:
        if not os.stat(way).st_mode & 0o001:
            closed = way
        if way == "/":
            return closed
        way = os.path.dirname(way)


def _open_way(closed: str, path: str) -> None:
    """Cover `closed` by an empty folder that shows `path` alone, at its place: Python in root's home, say."""
    real = os.path.realpath(path)
    kept = os.open(real, os.O_PATH | os.O_DIRECTORY)
    _mount("tmpfs", closed, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=64k")
    os.makedirs(real, exist_ok=True)
    _mount(f"/proc/self/fd/{kept}", real, None, MS_BIND | MS_REC)
    os.close(kept)
    if not os.path.exists(path):  # the installation was reached by a link inside the covered folder
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(real, path)


def _own_user_namespace() -> bool:
    """A user namespace of this worker's own, so that its calls' processes are counted apart from all others'."""
    uid, gid = os.getuid(), os.getgid()
    _prctl(PR_SET_DUMPABLE, 1)  # else /proc/self/uid_map belongs to root
    if _libc.unshare(CLONE_NEWUSER) != 0:
        return False
    _map_ids(uid, gid)
    return True


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _count_tasks(uid: int) -> int:
    """Threads that run as `uid`, as far as /proc shows."""
    total = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it ended meanwhile
            continue
    return total
