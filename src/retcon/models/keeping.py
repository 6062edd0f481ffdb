"""Folders that are made once, and are there whole or not at all, whoever else makes them at the same time."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retcon.core.errors import CheckpointError
from retcon.store.whole import synced

try:
    from safetensors import SafetensorError
except ImportError:  # then nothing is written with it
    SafetensorError = OSError  # type: ignore[assignment,misc]


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, which `make` fills where it is not there yet, given an empty folder beside it.

    Of several processes one makes it and the others wait for that one. What a killed process left is removed by the
    next. Raises CheckpointError where the disk says no.
    """
    if target.is_dir():
        return target
    partial = target.with_name(f".partial-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock")):
            if target.is_dir():  # another process has made it meanwhile
                return target
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                make(partial)
                for path in (*partial.rglob("*"), partial):
                    synced(path)
                partial.rename(target)
                synced(target.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:  # the safetensors library wraps the system's errors in its own
        raise CheckpointError(f"{target} could not be written: {error}") from error
    return target


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """The lock goes with the process, however that ends."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
