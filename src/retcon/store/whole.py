"""Files and folders that are there whole or not at all, whatever happens while they are written.

They are written beside their place, under a name that begins with `PARTIAL`, and renamed once they are on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
import stat
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from retcon.core.errors import CheckpointError, RecordError, StorageError
from retcon.store.compression import plain_name

PARTIAL = ".partial-"
_OLD = f"{PARTIAL}old-"
"""How the name of a folder begins while another takes its place."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
"""Errors for want of room, of a disk, a quota or a file; who writes for us does not always say which error it was."""


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target`, in place of what was there, only once everything is on the disk.

    On any error it is removed. Raises StorageError, with the free space, where the disk says no.
    """
    partial, old = (target.with_name(before + target.name) for before in (PARTIAL, _OLD))
    try:
        with explained(target):
            _clear(partial, old)
            partial.mkdir(parents=True)
            yield partial
            for file in partial.rglob("*"):
                synced(file)
            synced(partial)
            if target.is_dir() and not target.is_symlink():  # nothing else is replaced by a folder
                target.rename(old)  # to remove it may take seconds, in which nothing whole would stand there
            partial.rename(target)
            synced(target.parent)
    finally:
        _clear(partial, old)


def _clear(partial: Path, old: Path) -> None:
    """Remove what is left of a new folder and of the one before it; that one goes back where nothing took its place."""
    _put_back(old)
    for rest in (partial, old):
        shutil.rmtree(rest, ignore_errors=True)


def _put_back(old: Path) -> None:
    target = old.with_name(old.name.removeprefix(_OLD))
    if old.exists() and not target.exists():
        old.rename(target)


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """As `whole_folder`, one file. Two processes that write the same one do not see each other; the last one wins. What
    one that was killed left of it is removed."""
    partial = target.with_name(f"{PARTIAL}{os.getpid()}-{target.name}")
    with explained(target):
        _clear_dead(target)
        try:
            with partial.open("wb") as file:
                _lock(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
                partial.replace(target)  # while it has the lock, else another might clear it away
            synced(target.parent)
        finally:
            partial.unlink(missing_ok=True)


def _clear_dead(target: Path) -> None:
    """Remove the partial files of `target` that no process here has the number of, and none anywhere the lock."""
    end = f"-{target.name}"
    with suppress(OSError), os.scandir(target.parent) as there:  # of a folder that lists nothing
        for entry in there:
            process = entry.name.removeprefix(PARTIAL).removesuffix(end)
            if entry.name == f"{PARTIAL}{process}{end}" and process.isdecimal() and _is_gone(int(process)):
                path = target.with_name(entry.name)
                with suppress(OSError), path.open("r+b") as file:  # another may clear it too
                    if _lock(file):
                        path.unlink()


def _lock(file: IO[bytes]) -> bool:
    """Whether it is this process's now, until it is closed; False also where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # of somebody else, or no number of a process
        return False
    return False


def write_whole(target: Path, content: str | bytes) -> None:
    """`content`, text as UTF-8, as the file `target`, whole or not at all. Raises StorageError."""
    with whole_file(target) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def write_json(target: Path, content: object) -> None:
    """`content` as JSON in `target`, whole or not at all. Raises StorageError; ValueError for a number that is not
    finite."""
    write_whole(target, json.dumps(content, indent=2, allow_nan=False) + "\n")


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left half written in `folder`. What it had taken away for that goes back."""
    for old in [*folder.glob(f"{_OLD}*")]:
        _put_back(old)
    for path in folder.glob(f"{PARTIAL}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def explained(target: Path) -> Iterator[None]:
    """What a disk says no with becomes a StorageError: where, and how much is free if it may be full."""
    try:
        yield
    except OSError as error:
        advice = f"; {free_space(target)}: make room" if error.errno in FULL else ": put that right"
        raise StorageError(
            f"{target} could not be written, and is as it was before: {error}{advice} and run the same command again"
        ) from error


def free_space(path: Path) -> str:
    """A phrase on the room left on the disk of `path`, which need not exist yet."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    return f"{shutil.disk_usage(there).free / 2**20:.1f} MiB are free on the disk of {there}"


def synced(path: Path) -> None:
    """Puts a file, or what a folder lists, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LOCK = ".lock"
"""What stands in a folder that was written into so."""
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What file systems say that know no locks, as some of clusters: work goes on there without."""


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """No other process is within such a block over the folder `out`, which is made; the system forgets it with the
    process. Raises CheckpointError where one is, StorageError."""
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / LOCK).open("w")
    with lock:
        if not taken(lock):
            raise CheckpointError(f"another command is at work in {out}: wait for it, or choose another folder")
        yield


def check_unlocked(out: Path) -> None:
    """Raises CheckpointError where another process is within `alone` over the folder `out`; makes nothing."""
    with suppress(OSError), (out / LOCK).open("r+") as lock:
        if not taken(lock):
            raise CheckpointError(f"another command is at work in {out}: wait for it, or choose another folder")


@contextmanager
def alone_on(file: Path) -> Iterator[None]:
    """The same over one file, which is made; within the block it may be removed. Raises as `alone`."""
    with explained(file):
        lock = file.open("ab")
    with lock:
        if not taken(lock) or not os.fstat(lock.fileno()).st_nlink:  # removed between its opening and its lock
            raise CheckpointError(f"another command is at work on {file}: wait for it, or name another file")
        yield


def taken(lock: IO[str] | IO[bytes] | io.FileIO) -> bool:
    """Whether this process has the lock now, until it closes the file; also where there are no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


# Where output may go: to a file that is not there, or to one that may be replaced, and never over what is read.
#
# Files are compared as the system does, by device and inode, so that no spelling (`./x`, `$PWD/x`), no link and no
# second name of a folder hides that two of them are one.

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class OutputFile(NamedTuple):
    """A file to be written. flag: what the user named it by (`-o`, `--audit`), for messages. beside: names that are
    written beside it until it is finished."""

    flag: str
    path: Path
    beside: tuple[str, ...] = ()


def refuse_special(path: Path, flag: str = "") -> None:
    """Raises RecordError where something that is no regular file stands at `path`: nothing may be put in its place."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{_named(flag, path)} cannot be written: {error}") from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise RecordError(f"{_named(flag, path)} is {kind}, and not written over: name a regular file, or a new one")


def refuse_misnamed(path: Path, flag: str, also: Iterable[str] = ()) -> None:
    """Raises RecordError for a name that says that something else is in the file than JSON, or than what its suffix
    asks for. also: suffixes, of shapes that others can be written in."""
    if path.name == "-":
        raise RecordError(f"{flag} -: it is written to a file; name one")
    suffix = Path(plain_name(path.name)).suffix
    if suffix in (".xz", ".bz2", ".zip", ".7z", ".arrow", *also):
        raise RecordError(
            f"{_named(flag, path)} would be no {suffix} file: name a .jsonl, compressed as .jsonl.gz or .jsonl.zst"
        )


def check_outputs(outputs: Sequence[OutputFile], inputs: Iterable[Path] = ()) -> None:
    """Before any work: whether the outputs can be written without a loss of something else.

    Raises RecordError, which names flag and file, for what is no regular file, is an input too, or another output too.
    """
    read = {identity(path): path for path in inputs}
    taken: dict[Hashable, OutputFile] = {}
    for output in outputs:
        for path in (output.path, *(output.path.with_name(name) for name in output.beside)):
            refuse_special(path, output.flag)
            own = identity(path)
            if own in read:
                raise RecordError(
                    f"{_named(output.flag, path)} is an input too ({read[own]}): what was there before would be lost; "
                    "choose another name"
                )
            if own in taken:
                other = taken[own]
                raise RecordError(
                    f"{_named(output.flag, path)} and {_named(other.flag, other.path)} are one file; name two"
                )
            taken[own] = output


def refuse_finished(outputs: Sequence[OutputFile], force: str) -> None:
    """Raises RecordError where an output is there already. force: the flag that would have it replaced."""
    for output in outputs:
        if os.path.lexists(output.path):
            raise RecordError(f"{_named(output.flag, output.path)} is there already, and finished; {force} replaces it")


def identity(path: Path) -> Hashable:
    """What two names of one file have in common: device and inode; of what is not there, those of its folder and its
    name. Links are followed."""
    real = Path(os.path.realpath(path))
    try:
        found = real.stat()
    except OSError:
        return (identity(real.parent), real.name) if real.parent != real else str(real)
    return (found.st_dev, found.st_ino)


def _named(flag: str, path: Path) -> str:
    return f"{flag} {path}" if flag else str(path)
