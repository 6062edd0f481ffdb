"""Atomic writes of files and folders, file locks and output checks.

Files are written beside their final path, under a name that begins with `PARTIAL`, synced, then renamed.
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
"""Prefix of a folder's name while another replaces it."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)
"""Errors for lack of space, of a disk, a quota or a file; None: a library gave no error number."""


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that atomically replaces `target` at the end.

    On any error it is removed. Raises StorageError, with the free space, if a write fails.
    """
    partial, old = (target.with_name(before + target.name) for before in (PARTIAL, _OLD))
    try:
        with storage_errors(target):
            _clear(partial, old)
            partial.mkdir(parents=True)
            yield partial
            for file in partial.rglob("*"):
                fsync(file)
            fsync(partial)
            if target.is_dir() and not target.is_symlink():  # only a folder is replaced
                target.rename(old)  # removing it may take seconds, without a complete `target`
            partial.rename(target)
            fsync(target.parent)
    finally:
        _clear(partial, old)


def _clear(partial: Path, old: Path) -> None:
    """Remove a new folder's remains and the old folder, which is restored first if nothing replaced it."""
    _restore_old(old)
    for rest in (partial, old):
        shutil.rmtree(rest, ignore_errors=True)


def _restore_old(old: Path) -> None:
    target = old.with_name(old.name.removeprefix(_OLD))
    if old.exists() and not target.exists():
        old.rename(target)


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that atomically replaces `target` at the end. Of concurrent writers the last one wins;
    partial files of killed ones are removed. Raises StorageError."""
    partial = target.with_name(f"{PARTIAL}{os.getpid()}-{target.name}")
    with storage_errors(target):
        _clear_dead(target)
        try:
            with partial.open("wb") as file:
                _lock(file)
                yield file
                file.flush()
                os.fsync(file.fileno())
                partial.replace(target)  # under the lock, else another process might remove it
            fsync(target.parent)
        finally:
            partial.unlink(missing_ok=True)


def _clear_dead(target: Path) -> None:
    """Remove partial files of `target` whose process is gone, and which no process elsewhere has locked."""
    end = f"-{target.name}"
    with suppress(OSError), os.scandir(target.parent) as there:  # a folder without read permission
        for entry in there:
            process = entry.name.removeprefix(PARTIAL).removesuffix(end)
            if entry.name == f"{PARTIAL}{process}{end}" and process.isdecimal() and _is_gone(int(process)):
                path = target.with_name(entry.name)
                with suppress(OSError), path.open("r+b") as file:  # another may clear it too
                    if _lock(file):
                        path.unlink()


def _lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed; return False if it is taken, or locks are not supported."""
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
    except (OSError, OverflowError):  # another user's process, or an invalid number
        return False
    return False


def write_whole(target: Path, content: str | bytes) -> None:
    """Write a file atomically, text as UTF-8. Raises StorageError."""
    with whole_file(target) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def write_json(target: Path, content: object) -> None:
    """Write JSON atomically. Raises StorageError; ValueError for a number that is not finite."""
    write_whole(target, json.dumps(content, indent=2, allow_nan=False) + "\n")


def remove_partial(folder: Path) -> None:
    """Remove a killed process's partial files in `folder`; restore the folders it was replacing."""
    for old in [*folder.glob(f"{_OLD}*")]:
        _restore_old(old)
    for path in folder.glob(f"{PARTIAL}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def storage_errors(target: Path) -> Iterator[None]:
    """Reraise OSError as StorageError, with path and free space."""
    try:
        yield
    except OSError as error:
        advice = f"; {free_space(target)}: make room" if error.errno in FULL else ": put that right"
        raise StorageError(
            f"{target} could not be written, and is as it was before: {error}{advice} and run the same command again"
        ) from error


def free_space(path: Path) -> str:
    """Describe the free space on a path's disk; it need not exist."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    return f"{shutil.disk_usage(there).free / 2**20:.1f} MiB are free on the disk of {there}"


def fsync(path: Path) -> None:
    """Sync a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LOCK = ".lock"
"""Name of the lock file in a locked folder."""
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of file systems without locks, as in some clusters: work continues there without."""


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Create the folder `out` and lock it within the block.

    The lock ends with the process. Raises CheckpointError if another process has it, StorageError."""
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / LOCK).open("w")
    with lock:
        if not try_lock(lock):
            raise CheckpointError(f"another command is at work in {out}: wait for it, or choose another folder")
        yield


def check_unlocked(out: Path) -> None:
    """Check that no process has locked the folder `out`. Raises CheckpointError; creates nothing."""
    with suppress(OSError), (out / LOCK).open("r+") as lock:
        if not try_lock(lock):
            raise CheckpointError(f"another command is at work in {out}: wait for it, or choose another folder")


@contextmanager
def lock_file(file: Path) -> Iterator[None]:
    """Create and lock a file within the block, which may remove it. Raises CheckpointError, StorageError."""
    with storage_errors(file):
        lock = file.open("ab")
    with lock:
        if not try_lock(lock) or not os.fstat(lock.fileno()).st_nlink:  # removed between its opening and its lock
            raise CheckpointError(f"another command is at work on {file}: wait for it, or name another file")
        yield


def try_lock(lock: IO[str] | IO[bytes] | io.FileIO) -> bool:
    """Try to lock a file until it is closed; return success, also on file systems without locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


# Output goes to new files or to ones that may be replaced, never over an input.
#
# Files are compared by device and inode, so that no spelling (`./x`, `$PWD/x`), link or second name of a folder hides
# that two of them are one.

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class OutputFile(NamedTuple):
    """A file to be written. flag: the user's option for it (`-o`, `--audit`), for messages. beside: names of temporary
    files next to it."""

    flag: str
    path: Path
    beside: tuple[str, ...] = ()


def check_regular_file(path: Path, flag: str = "") -> None:
    """Check that `path` is new or a regular file; else raise RecordError."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{_named(flag, path)} cannot be written: {error}") from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "not a regular file")
        raise RecordError(f"{_named(flag, path)} is {kind}, and not written over: name a regular file, or a new one")


def check_suffix(path: Path, flag: str, also: Iterable[str] = ()) -> None:
    """Check that a name does not promise another format than JSON; else raise RecordError.

    also: further suffixes to refuse, of formats that other outputs can have."""
    if path.name == "-":
        raise RecordError(f"{flag} -: standard output is not supported here; name a file")
    suffix = Path(plain_name(path.name)).suffix
    if suffix in (".xz", ".bz2", ".zip", ".7z", ".arrow", *also):
        raise RecordError(
            f"{_named(flag, path)} would not be a {suffix} file: name a .jsonl, compressed as .jsonl.gz or .jsonl.zst"
        )


def check_outputs(outputs: Sequence[OutputFile], inputs: Iterable[Path] = ()) -> None:
    """Check, before any work, that no output overwrites something else.

    Raises RecordError, with flag and file, if one is not a regular file, is also an input, or also another output.
    """
    read = {identity(path): path for path in inputs}
    taken: dict[Hashable, OutputFile] = {}
    for output in outputs:
        for path in (output.path, *(output.path.with_name(name) for name in output.beside)):
            check_regular_file(path, output.flag)
            own = identity(path)
            if own in read:
                raise RecordError(
                    f"{_named(output.flag, path)} is an input too ({read[own]}): its content would be lost; "
                    "choose another name"
                )
            if own in taken:
                other = taken[own]
                raise RecordError(
                    f"{_named(output.flag, path)} and {_named(other.flag, other.path)} are one file; name two"
                )
            taken[own] = output


def check_not_finished(outputs: Sequence[OutputFile], force: str) -> None:
    """Check that no output exists; else raise RecordError. force: the option that replaces it."""
    for output in outputs:
        if os.path.lexists(output.path):
            raise RecordError(f"{_named(output.flag, output.path)} is there already, and finished; {force} replaces it")


def identity(path: Path) -> Hashable:
    """Return a key that two names of one file share: device and inode; of a new file, its folder's and its name. Links
    are followed."""
    real = Path(os.path.realpath(path))
    try:
        found = real.stat()
    except OSError:
        return (identity(real.parent), real.name) if real.parent != real else str(real)
    return (found.st_dev, found.st_ino)


def _named(flag: str, path: Path) -> str:
    return f"{flag} {path}" if flag else str(path)
