"""Users of a worker's calls if root started it. Standard library only."""

from __future__ import annotations

import os
import random

FIRST_UID = 0x72650000
"""1,919,221,760. Ids from 0x70000000 to 0x7FFFFFFF are unassigned (systemd's UIDS-GIDS.md), and fit 31 bits."""
UIDS = 1 << 24
PASSING = range(61184, 65520)
"""systemd's DynamicUser range: they own no files, and a container of 65,536 ids has them."""
OVERFLOW_UID = 65534


def pick_uid(first: int = FIRST_UID, count: int = UIDS) -> int:
    """Draw a uid that no process has, from [first, first + count).

    If this user namespace lacks those: from `PASSING`, then OVERFLOW_UID. Random, so that independent pools, also in
    other containers, do not collide. Raises OSError without any of them.
    """
    uids = range(first, first + count)
    if not _has(uids):
        if not _has(PASSING):
            if not _mapped(OVERFLOW_UID):
                raise OSError(
                    "calls need a user of their own where root starts them, and this user namespace has neither "
                    f"{first} to {first + count - 1} nor {OVERFLOW_UID} (/proc/self/uid_map, gid_map): map some "
                    "(`unshare --map-auto`), or start as another user than root"
                )
            return OVERFLOW_UID
        uids = PASSING
    taken = used_uids()
    draw = random.SystemRandom()
    none_free = all(uid in taken for uid in uids)
    while (uid := draw.choice(uids)) in taken and not none_free:
        pass
    return uid


def may_be_shared(uid: int | None) -> bool:
    """Whether other workers' calls may run as that user too. None: the user who started the sandbox."""
    return uid is None or uid == OVERFLOW_UID or uid in PASSING  # small enough for collisions


def used_uids() -> set[int]:
    """Return the uids of the processes in /proc."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.add(os.stat(f"/proc/{name}").st_uid)
            except OSError:  # it ended meanwhile
                continue
    return found


def count_tasks(uid: int) -> int:
    """Count the threads in /proc that run as `uid`."""
    total = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it ended meanwhile
            continue
    return total


def become(uid: int) -> None:
    """Give up the present user and groups for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def why_not_become(uid: int) -> str:
    """Try to `become` a user in a fork; return why it fails, "" if it works."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            become(uid)
        except OSError as error:
            os.write(writes, str(error.strerror).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads) as pipe:
        reason = pipe.read()
    os.waitpid(pid, 0)
    return reason


def closed_to_others(path: str) -> str | None:
    """Return the outermost folder of `path` that other users cannot enter."""
    way = os.path.realpath(path)
    closed = None
    while True:
        if not os.stat(way).st_mode & 0o001:
            closed = way
        if way == "/":
            return closed
        way = os.path.dirname(way)


def _has(uids: range) -> bool:
    return _mapped(uids[0]) and _mapped(uids[-1])


def _mapped(number: int) -> bool:
    """Whether this user namespace maps that uid and gid."""
    return all(_in_map(f"/proc/self/{kind}_map", number) for kind in ("uid", "gid"))


def _in_map(path: str, number: int) -> bool:
    with open(path) as file:
        rows = [[int(field) for field in line.split()] for line in file]
    return any(inside <= number < inside + length for inside, _, length in rows)
