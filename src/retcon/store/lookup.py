"""Finding trajectories in a large file without reading all of each line: the first few, and one by its id."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from retcon.core.errors import RecordError, nearest
from retcon.core.types import Trajectory
from retcon.store.compression import read_errors
from retcon.store.jsonl import open_lines, read_line, refuse_folder

BAD = 5
"""Broken lines that are told in full."""
SUGGESTED = 10_000
"""Ids that a wrong one is compared with at most: more take seconds."""


class _Named(msgspec.Struct):
    """What of a line says whose it is."""

    id: str


@dataclass(slots=True)
class Head:
    """The first trajectories of a file. bad: what is wrong with lines before the last of them. more: lines after."""

    trajectories: list[Trajectory] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    more: int = 0


def head(path: Path, limit: int) -> Head:
    """The first `limit` trajectories (0: all). Raises RecordError where the file cannot be read, is a folder, or begins
    with BAD broken lines and nothing else, so that it is no file of trajectories."""
    found = Head()
    lines = _lines(path)
    for number, line in lines:
        if limit and len(found.trajectories) == limit:
            found.more = 1 + sum(1 for _ in lines)
            break
        try:
            found.trajectories.append(read_line(line, f"{path}, line {number}"))
        except RecordError as error:
            found.bad.append(str(error))
            if len(found.bad) == BAD and not found.trajectories:
                told = "\n".join(found.bad)
                raise RecordError(
                    f"{path} is not a file of trajectories: none of its first {BAD} lines is one\n{told}"
                ) from None
    return found


def find(path: Path, wanted: str) -> Trajectory:
    """The trajectory of that id, else the only one whose id begins so. Only lines that may be it are read in full.

    Raises RecordError where there is none, with the nearest id, or more than one, or a line before it that is broken.
    """
    beginning: list[bytes] = []
    ids: list[str] = []
    for number, line in _lines(path):
        try:
            id = _id_of(line, f"{path}, line {number}")
        except RecordError:
            if not beginning:
                raise
            continue  # such as a last line that was cut off
        ids.append(id)
        if id == wanted:
            return read_line(line, f"{path}, line {number}")
        if id.startswith(wanted):
            beginning.append(line)
    if len(beginning) == 1:
        return read_line(beginning[0], f"{path}")
    if beginning:
        some = [id for id in ids if id.startswith(wanted)]
        told = f"{', '.join(some[:4])}{', …' if len(some) > 4 else ''}"
        raise RecordError(f"{path}: {len(some)} ids begin with '{wanted}': {told}")
    hint = nearest(wanted, ids[:SUGGESTED])
    raise RecordError(f"{path}: no trajectory '{wanted}'{hint}; `retcon show {path}` lists all")


def holds(path: Path, id: str) -> bool:
    """Whether a trajectory of the file has this very id. Raises RecordError at a line before it that is broken."""
    return any(_id_of(line, f"{path}, line {number}") == id for number, line in _lines(path))


def all_ids(path: Path) -> Iterator[str]:
    """Of all trajectories of a file; lines that are none are passed over. Raises RecordError where it cannot be
    read."""
    for number, line in _lines(path):
        with suppress(RecordError):
            yield _id_of(line, f"{path}, line {number}")


def first(path: Path, is_it: Callable[[Trajectory], bool], *, having: bytes) -> Trajectory | None:
    """The first trajectory that `is_it` says yes to; only lines with `having` in them are read in full."""
    for number, line in _lines(path):
        if having in line and is_it(found := read_line(line, f"{path}, line {number}")):
            return found
    return None


def _id_of(line: bytes, where: str) -> str:
    try:
        return msgspec.json.decode(line, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return read_line(line, where).id  # says what is wrong


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers."""
    refuse_folder(path)
    number = 0
    try:
        with open_lines(path) as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield number, line
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise RecordError(f"{path} does not exist{nearest(path.name, siblings)}") from None
    except read_errors() as error:
        raise RecordError(f"{path}, line {number + 1}: the file cannot be read further: {error}") from error
