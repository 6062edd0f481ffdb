"""Root file system with only what Python needs. Linux and standard library only.

Read-only: the system's libraries and programs, the interpreter, its packages. Made here: /etc, /dev, /proc. Writable:
/tmp (another folder if Python itself lies below it), /dev/shm and `GIVEN`, all in one tmpfs of limited size and number
of files. Nothing else of the host is visible.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NamedTuple

from retcon.sandbox.jail import kernel

SIZE_MB, FILES = 64, 8192
"""Limits on the files of a worker's calls: size and number."""
HOMES = ("/tmp", "/var/tmp", "/home/sandbox")
SHARED = "/dev/shm"
GIVEN = ("/mnt", "/data", "/workspace")
"""Names of one folder, at which programs for other sandboxes expect their inputs."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/fonts")
OF_A_PREFIX = ("bin", "lib", "lib64", "share", "pyvenv.cfg")  # not all: a project's folder may be its venv
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
"""Without /dev/zero, whose mappings are memory that counts for no process (`seccomp`). /dev/full reads the same."""
USER = "sandbox"
READ_ONLY = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV


def readable() -> list[str]:
    """List the host's paths that calls may read: the system, this interpreter, its packages."""
    wanted = [*SYSTEM, *ETC]
    for prefix in (sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix):
        wanted += [os.path.join(prefix, part) for part in OF_A_PREFIX]
    wanted += [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    wanted += filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    return [path for path in dict.fromkeys(map(os.path.normpath, wanted)) if path != "/" and os.path.exists(path)]


class EnteredRoot(NamedTuple):
    """A root that was entered. writable: its writable folders, scratch first; folders: with all their names. proc:
    whether it has a /proc."""

    writable: tuple[str, ...]
    folders: tuple[str, ...]
    proc: bool


def enter(point: str, uid: int, owner: int | None) -> EnteredRoot:
    """Build the new root in a tmpfs over `point`, and enter it.

    uid: user of the calls. owner: of the writable folders, None: this process's user. Needs this process's own mount
    and PID namespaces. Raises OSError.
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
        kernel.make_read_only(point + path, 0)  # a device stays writable, but its times are fixed
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{point}/dev/{name}")
    os.symlink("/proc/self/fd", f"{point}/dev/fd")
    _write_etc(f"{point}/etc", uid, home)
    _make_writable(point, home, given, owner)
    own_proc = _mount_proc(f"{point}/proc")
    kernel.change_root(point)
    # not the mounts below: they are read-only already, or meant to be written
    kernel.mount("none", "/", None, READ_ONLY)
    return EnteredRoot((home, SHARED, *given[:1]), (home, SHARED, *given), own_proc)


def _free_home(needed: list[str]) -> str:
    """Return a folder for calls to write to, without any of `needed` in it."""
    for home in HOMES:
        if not _holds(home, needed):
            return home
    raise OSError(f"Python lies below each of {', '.join(HOMES)}: none is left to write to")


def _holds(folder: str, paths: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for path in paths)


def _plan(paths: list[str]) -> tuple[dict[str, int], dict[str, str]]:
    """Return descriptors of real paths, and targets of symbolic links, that together provide `paths`."""
    shown: dict[str, int] = {}
    links: dict[str, str] = {}
    real_paths = sorted({_follow(path, links) for path in paths}, key=len)
    for real in real_paths:
        if not any(real.startswith(above + "/") for above in shown):
            shown[real] = os.open(real, os.O_PATH | os.O_CLOEXEC)
    return shown, links


def _follow(path: str, links: dict[str, str]) -> str:
    """Resolve a path; add every link on the way to `links`."""
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
    """Mount folders of one tmpfs at their places: a mount point cannot be removed or replaced."""
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
    """Mount this PID namespace's /proc, only processes if the kernel can; return whether it was allowed.

    Read-only, as a program that a call becomes by `exec` owns its files there, such as `oom_score_adj`.
    """
    os.mkdir(folder)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | kernel.MS_RDONLY
    for options in ("subset=pid", None):
        with contextlib.suppress(OSError):  # not allowed in containers that mask parts of theirs
            kernel.mount("proc", folder, "proc", flags, options)
            return True
    return False
