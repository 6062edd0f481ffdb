"""Which user the calls of a worker run as, where root started it. Standard library only."""

from __future__ import annotations

import os
import random

FIRST_UID = 0x72650000
"""1,919,221,760. No one allots ids from 0x70000000 to 0x7FFFFFFF (systemd's UIDS-GIDS.md); they fit 31 bits."""
UIDS = 1 << 24
PASSING = range(61184, 65520)
"""systemd's for users of the moment (DynamicUser): no files are theirs, and a container of 65,536 ids has them."""
NOBODY = 65534


def pick_uid(first: int = FIRST_UID, count: int = UIDS) -> int:
    """A uid out of [first, first + count) that no process has, out of `PASSING` where this user namespace lacks those,
    and `NOBODY` where it lacks these too.

    Drawn at random, so that pools which do not know of each other, in other containers too, do not meet. Raises OSError
    where there is not even `NOBODY`.
    """
    uids = range(first, first + count)
    if not _has(uids):
        if not _has(PASSING):
            if not _mapped(NOBODY):
                raise OSError(
                    "calls need a user of their own where root starts them, and this user namespace has neither "
                    f"{first} to {first + count - 1} nor {NOBODY} (/proc/self/uid_map, gid_map): map some "
                    "(`unshare --map-auto`), or start as another user than root"
                )
            return NOBODY
        uids = PASSING
    taken = used_uids()
    draw = random.SystemRandom()
    none_free = all(uid in taken for uid in uids)
    while (uid := draw.choice(uids)) in taken and not none_free:
        pass
    return uid


def may_be_shared(uid: int | None) -> bool:
    """Whether the calls of other workers may run as that user too; None stands for the one who started the sandbox."""
    return uid is None or uid == NOBODY or uid in PASSING  # of which two workers draw the same one now and then


def used_uids() -> set[int]:
    """Of the processes that /proc shows."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.add(os.stat(f"/proc/{name}").st_uid)
            except OSError:  # it ended meanwhile
                continue
    return found


def count_tasks(uid: int) -> int:
    """Threads that run as `uid`, as far as /proc shows."""
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


def why_not(uid: int) -> str:
    """Why this process could not `become` that user, empty where it could: tried in one that is forked for it."""
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
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def closed_to_others(path: str) -> str | None:
    """The outermost folder on the way to `path`, itself included, that other users may not enter."""
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
    """Whether this user namespace has such a user and such a group."""
    return all(_in_map(f"/proc/self/{kind}_map", number) for kind in ("uid", "gid"))


def _in_map(path: str, number: int) -> bool:
    with open(path) as file:
        rows = [[int(field) for field in line.split()] for line in file]
    return any(inside <= number < inside + length for inside, _, length in rows)
