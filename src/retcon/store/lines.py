"""Files of JSON Lines that grow: a line is there whole, or it is removed before the next is added."""

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
from retcon.store.whole import FULL, free_space, refuse_special, synced, taken

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


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


SUFFIX = ".partial"
JOURNAL = b'{"made_from":'
"""How a journal of demonstrations begins (`retcon demos`), which stands under such a name too."""


class NotWritten(OSError):
    """A disk says no to a `Partial`, which is its `filename`."""


def unwritable(path: Path, error: OSError) -> RecordError:
    """What to say of a file that a disk says no to; of a full one, how much is free."""
    advice = f"; {free_space(path.parent)}" if error.errno in FULL else ""
    return RecordError(f"{path} cannot be written: {error.strerror or error}{advice}")


def refuse_journal(path: Path) -> None:
    """Raises RecordError where `PATH.partial` is a journal of demonstrations, which may hold hours of work."""
    partial = path.with_name(path.name + SUFFIX)
    if not partial.is_file():
        return
    with partial.open("rb") as file:
        first = file.read(len(JOURNAL))
    if first == JOURNAL:
        raise RecordError(
            f"{partial} is what `retcon demos … --out {path}` had made when it stopped: go on with the same command, "
            "or name another file"
        )


class Partial:
    """`PATH.partial` until `commit` renames it; compressed where PATH ends in `.gz` or `.zst`.

    size: go on with a partial file of which that many bytes count; None begins anew. No other process writes it
    meanwhile. Raises RecordError where one does, where it cannot be written, is no regular file (a device, a folder)
    or somebody else's (see `refuse_journal`), or the partial file is not there or shorter.
    """

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self.partial = path.with_name(path.name + SUFFIX)
        refuse_special(path)
        refuse_special(self.partial)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if size is not None and self.partial.stat().st_size < size:
                raise RecordError(f"{self.partial} is shorter than it was: it cannot be resumed")
            # Emptied under its lock alone: another process may be writing it.
            disk = _Disk(self.partial, "r+b", opener=_made if size is None else None)
            if not taken(disk) or not _stands(disk, self.partial):
                disk.close()
                raise RecordError(f"another command is writing {self.partial}: wait for it, or name another file")
            if size is None:
                try:
                    refuse_journal(path)
                except RecordError:
                    disk.close()
                    raise
            disk.truncate(size or 0)
            disk.seek(size or 0)
            self._file = io.BufferedWriter(disk, 1 << 20)
        except OSError as error:
            raise unwritable(self.partial, error) from error
        self.out: IO[bytes] = compressed(self._file, path.name)

    def finish(self) -> int:
        """All of it on the disk, and still no other process writes it; its size."""
        try:
            if self.out is not self._file:
                self.out.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()
        except OSError as error:
            raise unwritable(self.partial, error) from error

    def pause(self) -> int:
        """Close it for now; the size to go on from."""
        size = self.finish()
        self.leave()
        return size

    def commit(self) -> None:
        """Put it in its place."""
        if not self._file.closed:
            self.finish()
        try:
            self.partial.replace(self.path)
            synced(self.path.parent)
        except OSError as error:
            raise RecordError(f"{self.path} could not be written, and is as it was before: {error}") from error
        self.leave()

    def leave(self) -> None:
        """Let go of it, so that it can be gone on with from where it was resumed; nothing is raised."""
        with suppress(OSError):  # of a full disk, what is not written yet does not count
            self._file.close()

    def discard(self) -> None:
        """Take it away; nothing happens where it is gone."""
        self.leave()
        self.partial.unlink(missing_ok=True)


def _made(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _stands(opened: io.FileIO, path: Path) -> bool:
    """Whether it is still the file of that name: between its opening and its lock, another process may have put it in
    its place, where it is whole."""
    try:
        return os.path.samestat(os.fstat(opened.fileno()), path.stat())
    except FileNotFoundError:
        return False


class _Disk(io.FileIO):
    """Raises NotWritten, which tells several files of one disk apart."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise NotWritten(error.errno, error.strerror, self.name) from error
