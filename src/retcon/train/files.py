"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from retcon.core.errors import CheckpointError

PARTIAL = ".partial-"


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target`, in place of what was there, only once everything is on the disk.

    On any error it is removed. Raises CheckpointError, with the free space, where the disk says no.
    """
    partial = target.with_name(f"{PARTIAL}{target.name}")
    try:
        with explained(target):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            yield partial
            for file in partial.rglob("*"):
                _sync(file)
            _sync(partial)
            if target.exists():
                shutil.rmtree(target)
            partial.rename(target)
            _sync(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(target: Path, content: str) -> None:
    """As `whole_folder`, for one file of text."""
    partial = target.with_name(f"{PARTIAL}{target.name}")
    try:
        with explained(target):
            partial.write_text(content, encoding="utf-8")
            _sync(partial)
            partial.replace(target)
            _sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_json(target: Path, content: object) -> None:
    """`content` as JSON in `target`, whole or not at all."""
    write_whole(target, json.dumps(content, indent=2, allow_nan=False) + "\n")


def remove_partial(folder: Path) -> None:
    """Remove what a killed process left half written in `folder`."""
    for path in folder.glob(f"{PARTIAL}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def explained(target: Path) -> Iterator[None]:
    """A disk that says no (full, over quota, read-only) becomes a CheckpointError that says where and how much is free.

    The safetensors library wraps the system's errors in its own.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{target} could not be written ({error}); {free_space(target)}. What was saved before is untouched: make "
            "room and run the same command again to go on from there"
        ) from error


def free_space(path: Path) -> str:
    """A phrase on the room left on the disk of `path`, which need not exist yet."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    return f"{shutil.disk_usage(there).free / 2**20:.1f} MiB are free on the disk of {there}"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
