"""One more trajectory for a file, under an id that is free in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from retcon.core.errors import RecordError
from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.store.alone import alone_on
from retcon.store.compression import SUFFIXES, is_compressed
from retcon.store.outputs import refuse_special
from retcon.store.whole import explained


@contextmanager
def adding(path: Path, flag: str, id: str) -> Iterator[Callable[[Trajectory], str]]:
    """What adds a trajectory to the file, as `id`, or `id-2`, `id-3`, … where it has that already; returns which. What
    is left of a line that was cut off is removed then, and a compressed file written anew. No other process adds to
    the file meanwhile; one that was not there is made, and goes where nothing is added.

    flag: what the user named it by, for messages. Raises at once, before there is anything to lose: RecordError where
    the file is no regular one, holds something else than trajectories or is compressed and not named so,
    CheckpointError where another process adds to it, StorageError where it cannot be written, MissingExtra for zstd
    without its package.
    """
    refuse_special(path, flag)
    new = not os.path.lexists(path)
    with alone_on(path):
        try:
            free = _free(path, flag, id)
            if path.suffix in SUFFIXES:
                with explained(path), tempfile.TemporaryFile(dir=path.parent):
                    pass
            elif is_compressed(path):
                raise RecordError(f"{flag} {path}: it is compressed, which its name does not say: name it .gz or .zst, "
                                  "or choose another")  # fmt: skip

            def add(trajectory: Trajectory) -> str:
                _add(path, replace(trajectory, id=free))
                return free

            yield add
        finally:
            if new and path.is_file() and not path.stat().st_size:
                path.unlink()


def _free(path: Path, flag: str, id: str) -> str:
    def foreign(error: RecordError) -> None:
        if not isinstance(error, jsonl.Unfinished):
            said = f"{flag} {path}: it is no file of trajectories, and is left as it is ({error})"
            raise RecordError(said) from error

    taken = {one.id for one in jsonl.read(path, on_bad=foreign)}
    return next(name for name in chain((id,), (f"{id}-{n}" for n in count(2))) if name not in taken)


def _add(path: Path, trajectory: Trajectory) -> None:
    if path.suffix in SUFFIXES:
        jsonl.write(path, chain(jsonl.read(path, on_bad=lambda _: None), (trajectory,)))
        return
    with jsonl.Appender(path) as file:
        file.add(trajectory)
