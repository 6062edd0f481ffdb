"""Trajectory files: JSON Lines, one trajectory a line, plain or compressed: written by the name's `.gz` or `.zst`, read
by what their first bytes say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import msgspec

from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError
from retcon.core.types import Trajectory
from retcon.store.compression import SUFFIXES, compressed, decompressed, read_errors
from retcon.store.lines import LineAppender
from retcon.store.outputs import refuse_special
from retcon.store.whole import whole_file

BEGINNING = b'{"id":'
"""Of every line that is written here."""


def write(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Write a whole file, atomically: it is there in full or, on any error, as it was before. Returns the count.

    Raises StorageError where the file cannot be written (a full disk), RecordError for a number that is not finite,
    MissingExtra for zstd without its package.
    """
    return write_lines(path, map(line_of, trajectories))


def write_lines(path: str | Path, lines: Iterable[bytes]) -> int:
    """As `write`, of lines that end in a line end."""
    path = Path(path)
    refuse_special(path)
    count = 0
    with whole_file(path) as file, _compressing(file, path) as out:
        for line in lines:
            out.write(line)
            count += 1
    return count


class Unfinished(RecordError):
    """A last line that was cut off, of a trajectory as far as it goes."""


class Appender:
    """Adds trajectories to a plain file, one `add` at a time, as `LineAppender` does; use it in a `with`.

    Raises RecordError where the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._lines = LineAppender(path)

    def add(self, trajectory: Trajectory) -> None:
        """Append one line."""
        self._lines.add(line_of(trajectory), name=f"trajectory {trajectory.id}")

    def close(self) -> None:
        """Close the file, once it is safe on the disk."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: str | Path, *, on_bad: Callable[[RecordError], None] | None = None) -> Iterator[Trajectory]:
    """The trajectories of a file, one at a time; empty lines are ignored.

    Raises RecordError, which begins `FILE, line N:`, at a line that is no trajectory. With `on_bad` such a line is
    passed to it as that error, and reading goes on with the next one. A file that cannot be opened always raises.
    """
    path = Path(path)
    refuse_folder(path)
    number = 0
    try:
        with open_lines(path) as file:
            for line in file:
                number += 1
                if not line.strip():
                    continue
                try:
                    yield read_line(line, f"{path}, line {number}")
                except RecordError as error:
                    if on_bad is None:
                        raise
                    on_bad(error)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except read_errors() as error:
        broken = RecordError(f"{path}, line {number + 1}: the file cannot be read further: {error}")
        if on_bad is None or isinstance(error, PermissionError):
            raise broken from error
        on_bad(broken)


def line_of(trajectory: Trajectory) -> bytes:
    """One line of a file, its line end included. Raises RecordError for a number that is not finite."""
    value = to_dict(trajectory)
    try:
        line = msgspec.json.encode(value)
        if b"null" not in line:  # which a number that is not finite becomes
            return line + b"\n"
    except (UnicodeEncodeError, TypeError, msgspec.MsgspecError):
        pass  # a lone surrogate; or what is no JSON, as is said below
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError) as error:
        raise RecordError(f"trajectory {trajectory.id} cannot be written as JSON: {error}") from error
    # Lone surrogates, which a tool's output may hold, are no text: '?' rather than a trajectory that is lost.
    return text.encode("utf-8", "replace") + b"\n"


def read_line(line: bytes, where: str) -> Trajectory:
    """The trajectory of one line. where: the file and line, which an error begins with. Raises RecordError, Unfinished
    where no more is wrong with it than that its end is not there."""
    try:
        return from_dict(msgspec.json.decode(line), where)
    except RecursionError:
        raise RecordError(f"{where}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if line.endswith(b"\n"):
            raise RecordError(f"{where}: not JSON: {error}") from error
        kind = Unfinished if line.startswith(BEGINNING[: len(line)]) else RecordError
        raise kind(f"{where}: cut off in the middle (was its writer stopped?): not JSON: {error}") from error


def refuse_folder(path: Path) -> None:
    """Raises RecordError where a folder is named in place of a file of it: says which there are, audits first, and no
    metrics of a run."""
    if path.is_dir():
        found = (p for p in path.rglob("*.jsonl*") if p.name != "metrics.jsonl")
        inside = sorted((".audit." not in p.name, str(p.relative_to(path))) for p in found)
        names = [name for _, name in inside[:4]]
        there = f": it holds {', '.join(names)}{', …' if len(inside) > 4 else ''}" if inside else ""
        raise RecordError(f"{path} is a folder; name a file of trajectories{there}")


def open_lines(path: Path) -> IO[bytes]:
    """The bytes of a file, gzip and zstd undone. Raises MissingExtra for zstd without its package."""
    return cast(IO[bytes], decompressed(path.open("rb"), str(path)))


def _compressing(file: IO[bytes], path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    return compressed(file, path.name) if path.suffix in SUFFIXES else contextlib.nullcontext(file)
