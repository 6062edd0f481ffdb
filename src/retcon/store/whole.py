"""Files and folders that are there whole or not at all, whatever happens while they are written.

They are written beside their place, under a name that begins with `PARTIAL`, and renamed once they are on the disk.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from retcon.core.errors import StorageError

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
