"""Folders that are made once, and are there whole or not at all, whoever else makes them at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retcon.store.whole import explained, whole_folder

try:
    from safetensors import SafetensorError
except ImportError:  # then nothing is written with it
    SafetensorError = OSError  # type: ignore[assignment,misc]


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, which `make` fills where it is not there yet, given an empty folder beside it.

    Of several processes one makes it and the others wait for that one. What a killed process left is removed by the
    next. Raises StorageError where the disk says no, and what `make` does.
    """
    if target.is_dir():
        return target
    with explained(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f".{target.name}.lock")):
            if not target.is_dir():  # or another process has made it meanwhile
                with whole_folder(target) as partial, as_os_error():
                    make(partial)
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


@contextmanager
def as_os_error() -> Iterator[None]:
    """The safetensors library wraps the system's errors in its own."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
