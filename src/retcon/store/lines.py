"""Files of JSON Lines that grow: a line is there whole, or it is removed before the next is added."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

from retcon.core.errors import RecordError
from retcon.store.compression import is_compressed
from retcon.store.outputs import refuse_special


class LineAppender:
    """Adds lines to a plain file, one `add` at a time; use it in a `with`.

    Each line is handed to the system at once, so that a killed process loses at most the line it was writing. What is
    left of such a line is removed when the file is opened again. Raises RecordError where the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        refuse_special(self._path)
        try:
            if is_compressed(self._path):
                raise RecordError(f"{path}: compressed files cannot be added to; write a plain .jsonl, or use write()")
            _mend(self._path)
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise RecordError(f"{path} cannot be opened for writing: {error}") from error

    def add(self, line: bytes, *, name: str) -> None:
        """Append one line, its end included; name: what it is of, for an error."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise RecordError(f"{self._path}: {name} could not be added: {error}") from error

    def close(self) -> None:
        """Close the file, once it is safe on the disk."""
        if not self._file.closed:
            try:
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _mend(path: Path) -> None:
    """Remove what is left of a line that was never finished; a whole line gets the line end that it lacks.

    Raises RecordError for a last line that was never one of an object: nothing is removed from a file that is no JSON
    Lines.
    """
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = _last_line_start(file, end)
        file.seek(start)
        last = file.read()
        if not last:
            return
        if not last.startswith(b"{"):
            raise RecordError(f"{path} is not a file of JSON Lines: nothing is added to it; choose another")
        try:
            msgspec.json.decode(last)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            file.truncate(start)
        else:
            file.write(b"\n")


def _last_line_start(file: IO[bytes], end: int) -> int:
    """Offset just after the last line end before `end`, 0 where there is none."""
    block = 1 << 16
    while end > 0:
        begin = max(0, end - block)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
