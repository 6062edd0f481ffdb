"""A root file system that shows only what Python needs, and what of the host that is. Linux, standard library only.

Read-only: the system's libraries and programs, the interpreter, its packages. Made here: /etc, /dev, /proc. Writable:
/tmp (another folder where Python itself lies below it), /dev/shm and `GIVEN`, all of one tmpfs whose size and number of
files are bounded. Nothing else of the host is there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

from retcon.sandbox.jail import kernel

SIZE_MB, FILES = 64, 8192
"""What the calls of a worker may keep in files at a time."""
HOMES = ("/tmp", "/var/tmp", "/home/sandbox")
SHARED = "/dev/shm"
GIVEN = ("/mnt", "/data", "/workspace")
"""One folder under the names at which programs that were written for other sandboxes expect what they are given."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/fonts")
OF_A_PREFIX = ("bin", "lib", "lib64", "share", "pyvenv.cfg")  # not all of it: a project may be its own environment
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Not /dev/zero: what is mapped of it is memory that counts for no process (`seccomp`). /dev/full reads the same."""
USER = "sandbox"
READ_ONLY = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV


def readable() -> list[str]:
    """Paths of the host that calls may read: what of the system, this interpreter and its packages exists."""
    wanted = [*SYSTEM, *ETC]
    for prefix in (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix):
        wanted += [os.path.join(prefix, part) for part in OF_A_PREFIX]
    wanted += [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    wanted += filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    return [path for path in dict.fromkeys(map(os.path.normpath, wanted)) if path != "/" and os.path.exists(path)]


class Entered(NamedTuple):
    """A root that was entered. writable: its folders that are, scratch first; folders: the same by all their names.
    proc: whether it has a /proc."""

    writable: tuple[str, ...]
    folders: tuple[str, ...]
    proc: bool


def enter(point: str, uid: int, owner: int | None) -> Entered:
    """Make the new root in a tmpfs over the folder `point` and go there.

    uid: whom the calls run as. owner: whom the writable folders are given to, None where it is this process's user.
    Needs a mount and a pid namespace of this process's own. Raises OSError.
    """
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    shown, links = _plan(readable())
    needed = [*shown, *links]
    home = _free_home(needed)
    given = [name for name in GIVEN if not _holds(name, needed)]
    shown_as = {path: path for path in DEVICES} | {"/dev/zero": "/dev/full"}
    devices = {path: os.open(of_host, os.O_PATH | os.O_CLOEXEC) for path, of_host in shown_as.items()}
    kernel.mount("tmpfs", point, "tmpfs", kernel.MS_NOSUID, "mode=0755,size=1m,nr_inodes=2048")
    for path in sorted(shown):
        _bind(shown[path], point + path)
        kernel.make_read_only(point + path)
    for path, target in links.items():
        if not os.path.lexists(point + path):
            os.makedirs(os.path.dirname(point + path), exist_ok=True)
            os.symlink(target, point + path)
    for path, fd in devices.items():
        _bind(fd, point + path)
        kernel.make_read_only(point + path, 0)  # a device is written to all the same, but its times stay
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{point}/dev/{name}")
    os.symlink("/proc/self/fd", f"{point}/dev/fd")
    _write_etc(f"{point}/etc", uid, home)
    _make_writable(point, home, given, owner)
    own_proc = _mount_proc(f"{point}/proc")
    kernel.change_root(point)
    # not what is mounted below: that is read-only already, or meant to be written
    kernel.mount("none", "/", None, READ_ONLY)
    return Entered((home, SHARED, *given[:1]), (home, SHARED, *given), own_proc)


def _free_home(needed: list[str]) -> str:
    """Where calls may write, with nothing of `needed` in it."""
    for home in HOMES:
        if not _holds(home, needed):
            return home
    raise OSError(f"Python lies below each of {', '.join(HOMES)}: none is left to write to")


def _holds(folder: str, paths: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for path in paths)


def _plan(paths: list[str]) -> tuple[dict[str, int], dict[str, str]]:
    """(real path to a descriptor of it, symbolic link to its target) that together make `paths` be there."""
    shown: dict[str, int] = {}
    links: dict[str, str] = {}
    real_paths = sorted({_follow(path, links) for path in paths}, key=len)
    for real in real_paths:
        if not any(real.startswith(above + "/") for above in shown):
            shown[real] = os.open(real, os.O_PATH | os.O_CLOEXEC)
    return shown, links


def _follow(path: str, links: dict[str, str]) -> str:
    """The real path; every link on the way is noted in `links`."""
    done, rest = "", path.strip("/").split("/")
    while rest:
        step = f"{done}/{rest.pop(0)}"
        if not os.path.islink(step):
            done = step
            continue
        links[step] = os.readlink(step)
        target = os.path.normpath(os.path.join(done or "/", links[step]))
        done, rest = "", target.strip("/").split("/") + rest
    return done


def _bind(fd: int, target: str) -> None:
    source = f"/proc/self/fd/{fd}"
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
    os.close(fd)


def _write_etc(folder: str, uid: int, home: str) -> None:
    os.makedirs(folder, exist_ok=True)
    files = {
        "passwd": f"{USER}:x:{uid}:{uid}::{home}:/bin/sh\n",
        "group": f"{USER}:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }
    for name, text in files.items():
        with open(f"{folder}/{name}", "w") as file:
            file.write(text)


def _make_writable(point: str, home: str, given: list[str], owner: int | None) -> None:
    """One tmpfs, folders of which are seen, each at its place: a mount point cannot be removed or replaced."""
    top = point + SHARED
    os.makedirs(top)
    options = f"mode=0700,size={SIZE_MB}m,nr_inodes={FILES}"
    kernel.mount("tmpfs", top, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    for name in ("home", "shared", "given"):
        os.mkdir(f"{top}/{name}", 0o700)
        if owner is not None:
            os.chown(f"{top}/{name}", owner, owner)
    for source, target in [("home", home), *(("given", name) for name in given)]:
        os.makedirs(point + target)
        kernel.mount(f"{top}/{source}", point + target, None, kernel.MS_BIND)
    kernel.mount(f"{top}/shared", top, None, kernel.MS_BIND)


def _mount_proc(folder: str) -> bool:
    """A /proc of this pid namespace, of processes alone where the kernel has that; none where it is not allowed.

    To be read alone: a program that a call becomes by `exec` owns its files there, `oom_score_adj` among them.
    """
    os.mkdir(folder)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
    for options in ("subset=pid", None):
        with contextlib.suppress(OSError):  # some containers cover parts of theirs, and then a new one may not be had
            kernel.mount("proc", folder, "proc", flags, options)
            return True
    return False
