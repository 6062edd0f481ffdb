"""Growing JSON Lines files: incomplete lines are removed before the next append."""

from __future__ import annotations

import io
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

import msgspec

from retcon.core.errors import RecordError
from retcon.store.compression import compressed, is_compressed
from retcon.store.whole import FULL, check_regular_file, free_space, fsync, try_lock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class LineAppender:
    """Appender of lines to a plain file, one `add` at a time; use it in a `with`.

    Lines are not buffered, so that a killed process loses at most the line it was writing. An incomplete line is
    removed when the file is opened again. Raises RecordError if the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        check_regular_file(self._path)
        try:
            if is_compressed(self._path):
                raise RecordError(f"{path}: compressed files cannot be added to; write a plain .jsonl, or use write()")
            _repair_last_line(self._path)
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise RecordError(f"{path} cannot be opened for writing: {error}") from error

    def add(self, line: bytes, *, name: str) -> None:
        """Append one line with its end. name: of its content, for errors."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise RecordError(f"{self._path}: {name} could not be added: {error}") from error

    def close(self) -> None:
        """Sync and close the file."""
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


def _repair_last_line(path: Path) -> None:
    """Remove an incomplete last line; add a missing line end to a complete one.

    Raises RecordError if the last line does not begin an object: the file is then not JSON Lines, and stays unchanged.
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
    """Return the offset just after the last line end before `end`, 0 without one."""
    block = 1 << 16
    while end > 0:
        begin = max(0, end - block)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


SUFFIX = ".partial"
JOURNAL = b'{"made_from":'
"""Beginning of a journal of demonstrations (`retcon demos`), which has the same suffix."""


class WriteFailed(OSError):
    """A write to a `PartialFile` failed; `filename` is its path."""


def write_error(path: Path, error: OSError) -> RecordError:
    """Return the error of a failed write, with the free space."""
    advice = f"; {free_space(path.parent)}" if error.errno in FULL else ""
    return RecordError(f"{path} cannot be written: {error.strerror or error}{advice}")


def check_no_journal(path: Path) -> None:
    """Check that `PATH.partial` holds no journal of demonstrations; else raise RecordError."""
    partial = path.with_name(path.name + SUFFIX)
    if not partial.is_file():
        return
    with partial.open("rb") as file:
        first = file.read(len(JOURNAL))
    if first == JOURNAL:
        raise RecordError(
            f"{partial} holds the work of a stopped `retcon demos … --out {path}`: go on with the same command, "
            "or name another file"
        )


class PartialFile:
    """File `PATH.partial` until `commit` renames it; compressed if PATH ends in `.gz` or `.zst`.

    size: continue a partial file after that many bytes; None: start anew. It is locked meanwhile. Raises RecordError if
    another process writes it, it cannot be written, is not a regular file (a device, a folder), is a journal (see
    `check_no_journal`), or, to continue, is missing or shorter.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self.partial = path.with_name(path.name + SUFFIX)
        check_regular_file(path)
        check_regular_file(self.partial)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if size is not None and self.partial.stat().st_size < size:
                raise RecordError(f"{self.partial} is shorter than it was: it cannot be resumed")
            # Truncate it only under its lock, as another process may be writing it.
            disk = _Disk(self.partial, "r+b", opener=_open_or_create if size is None else None)
            if not try_lock(disk) or not _is_same_file(disk, self.partial):
                disk.close()
                raise RecordError(f"another command is writing {self.partial}: wait for it, or name another file")
            if size is None:
                try:
                    check_no_journal(path)
                except RecordError:
                    disk.close()
                    raise
            disk.truncate(size or 0)
            disk.seek(size or 0)
            self._file = io.BufferedWriter(disk, 1 << 20)
        except OSError as error:
            raise write_error(self.partial, error) from error
        self.out: IO[bytes] = compressed(self._file, path.name)

    def finish(self) -> int:
        """Flush and sync the file, and keep its lock; return its size."""
        try:
            if self.out is not self._file:
                self.out.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()
        except OSError as error:
            raise write_error(self.partial, error) from error

    def pause(self) -> int:
        """Close the file for now; return the size to continue from."""
        size = self.finish()
        self.leave()
        return size

    def commit(self) -> None:
        """Rename the file to its final path."""
        if not self._file.closed:
            self.finish()
        try:
            self.partial.replace(self.path)
            fsync(self.path.parent)
        except OSError as error:
            raise RecordError(f"{self.path} could not be written, and is as it was before: {error}") from error
        self.leave()

    def leave(self) -> None:
        """Close the file, so that it can be resumed again; raise nothing."""
        with suppress(OSError):  # on a full disk the unwritten rest does not count
            self._file.close()

    def discard(self) -> None:
        """Delete the file if it exists."""
        self.leave()
        self.partial.unlink(missing_ok=True)


def _open_or_create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _is_same_file(opened: io.FileIO, path: Path) -> bool:
    """Whether it is still the file of that name: another process may have renamed it before the lock."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    except FileNotFoundError:
        return False


class _Disk(io.FileIO):
    """File that raises WriteFailed, which names it, on a failed write."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise WriteFailed(error.errno, error.strerror, self.name) from error
