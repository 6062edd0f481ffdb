"""Records of other people's files, one at a time: JSON Lines, JSON arrays, one JSON document, inspect_ai's logs, and
Parquet, slime's dumps.

A record is the bytes that stand in the file, so that one that nothing changes can be written back as it was. Memory
holds one record, whatever the file's size, except for a document, which is one record or, as inspect_ai's `.json`
log and slime's dump, is read whole, and for Parquet, of which it holds some rows.
"""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from retcon.core.errors import RecordError
from retcon.store.arrays import ArrayWriter, items_of
from retcon.store.compression import decompressed, plain_name, read_errors
from retcon.store.foreign.dumps import DumpWriter, dump_source
from retcon.store.foreign.logs import EvalWriter, LogWriter, eval_source, frame_of, log_source
from retcon.store.foreign.parquet import ParquetWriter, RowsWriter, parquet_source
from retcon.store.types import WHOLE, Record, Shape, Source, Writer

__all__ = ["STDIN", "WHOLE", "LinesWriter", "Record", "Shape", "Source", "Writer", "marked_as", "open_source", "writer"]

STDIN = Path("-")
KINDS = (".jsonl", ".ndjson", ".json", ".traj", ".eval", ".parquet", ".pt")
"""Suffixes of files that may hold transcripts, before the one of a compression."""
DOCUMENTS = (".json", ".traj")
"""Those of files that are one JSON value."""
LINES = (".jsonl", ".ndjson")
"""Those of files that are one record a line."""
_CHUNK = 1 << 20
_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


def open_source(path: Path) -> Source:
    """Open a file, or `-` for standard input, plain or compressed (seen from its bytes, not its name).

    Raises RecordError where it cannot be read, or is of a kind that is not; MissingExtra where it takes a package that
    is not there.
    """
    _refuse_other_kinds(path)
    if path.suffix == ".eval":
        return eval_source(path)
    if path.suffix == ".parquet":
        return parquet_source(path)
    if path.suffix == ".pt":
        return dump_source(path)
    try:
        raw = io.FileIO(sys.stdin.fileno(), closefd=False) if path == STDIN else io.FileIO(path)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    size = os.fstat(raw.fileno()).st_size if raw.seekable() else 0

    def read() -> int:
        return size if raw.closed or not size else raw.tell()

    name = "standard input" if path == STDIN else str(path)
    plain = decompressed(io.BufferedReader(raw, _CHUNK), name)
    try:
        return _source_of(path, plain, name, read)
    except read_errors() as error:
        plain.close()
        raise RecordError(f"{name}, line 1: the file cannot be read: {error}") from error


def _source_of(path: Path, file: io.BufferedReader, name: str, read: Callable[[], int]) -> Source:
    """What a file is by its first bytes, and by its name."""
    head = file.peek(_CHUNK)[:_CHUNK]
    if wide := marked_as(head):
        file.close()
        raise RecordError(f"{name}: it is {wide}, and not UTF-8: iconv -f {wide} -t UTF-8 rewrites it")
    first = head.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if first == b"[":
        if plain_name(path.name).endswith(LINES):
            line = file.readline()
            following = file.readline() if _is_json(line) else b""
            file = _chained(line + following, file)
            if following.strip():  # each line is a list: a transcript that is nothing but its messages
                return Source(path, "lines", _lines(file, name), read)
        tail: list[bytes] = []
        return Source(path, "array", items_of(file, name, tail), read, tail=tail)
    if first == b"{" and plain_name(path.name).endswith(DOCUMENTS):
        return _document(path, file, name, read)
    return Source(path, "lines", _lines(file, name), read)


def marked_as(head: bytes) -> str:
    """Which encoding of several bytes a letter a file is marked as by its first bytes, "" for none."""
    for encoding, marks in _MARKS.items():  # the mark of UTF-32 begins as that of UTF-16
        if head.startswith(marks):
            return encoding
    return ""


def writer(source: Source, out: IO[bytes], *, kind: str = "", going_on: bool = False, joined: bool = False) -> Writer:
    """What writes records to `out`.

    kind: a suffix that asks for another shape than the source's own: `.jsonl`, `.json` (an array), `.parquet`.
    going_on: records stand in the file before. joined: the file is of several sources.
    """
    if source.shape == "session":
        return DocumentWriter(out)
    if kind == ".jsonl":
        return LinesWriter(out, going_on=going_on)
    if kind == ".parquet":
        return RowsWriter(source.table, out) if source.shape == "parquet" and not joined else ParquetWriter(out)
    if kind == ".json":
        return ArrayWriter(out, source.tail, going_on=going_on, joined=joined)
    if source.shape == "dump":
        return DumpWriter(source.table, out)
    if source.shape == "eval":
        return EvalWriter(source.path, out)
    if source.shape == "log":
        return LogWriter(source.around, source.tail, out)
    if source.shape == "document":
        return DocumentWriter(out)
    if source.shape == "array":
        return ArrayWriter(out, source.tail, going_on=going_on, joined=joined)
    return LinesWriter(out, going_on=going_on)


class LinesWriter(Writer):
    """going_on: whether records stand before, in a file whose writing is resumed."""

    def __init__(self, out: IO[bytes], *, going_on: bool = False) -> None:
        self._write = out.write
        self._any = going_on

    def begin(self) -> None:
        """Lines need no opening."""

    def add(self, record: Record, data: bytes) -> None:
        if record.kind != "line" or data is not record.data:
            end = b"\r\n" if record.kind == "line" and data.endswith(b"\r\n") else b"\n"
            data = _one_line(data.removesuffix(end)) + end
        if self._any:  # only at the beginning of a file is it a mark
            data = data.removeprefix(codecs.BOM_UTF8)
        self._write(data if data.endswith(b"\n") else data + b"\n")
        self._any = True

    def end(self) -> None:
        """Nor a closing."""


class DocumentWriter(Writer):
    """One record as it stands, line breaks and all."""

    def __init__(self, out: IO[bytes]) -> None:
        self._write = out.write

    def begin(self) -> None:
        """Nothing stands before it."""

    def add(self, record: Record, data: bytes) -> None:
        self._write(data)

    def end(self) -> None:
        """Nor after it."""


def _one_line(data: bytes) -> bytes:
    """JSON without line breaks, which it has between values only."""
    data = data.strip()
    return data if b"\n" not in data and b"\r" not in data else b"".join(p.strip() for p in data.splitlines())


def _lines(file: IO[bytes], name: str) -> Iterator[Record]:
    number = 0
    try:
        with file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield Record(line, number, name)
    except read_errors() as error:
        raise RecordError(f"{name}, line {number + 1}: the file cannot be read further: {error}") from error


def _document(path: Path, file: io.BufferedReader, name: str, read: Callable[[], int]) -> Source:
    """A `.json` that begins with an object: inspect_ai's log, one transcript, or JSON Lines under another name."""
    first = file.readline()
    rest_is_lines = _is_json(first)
    following = file.readline() if rest_is_lines else b""
    if rest_is_lines and following.strip():
        return Source(path, "lines", _lines(_chained(first + following, file), name), read)
    with file:
        whole = first + following + file.read()
    try:
        frame = frame_of(whole)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name}: not JSON: {error}") from error
    if {"samples", "eval"} <= set(frame):
        return log_source(path, whole, frame, read)
    return Source(path, "document", iter([Record(whole, 1, name, "document")]), read)


def _chained(head: bytes, rest: io.BufferedReader) -> io.BufferedReader:
    """A file whose beginning was read already."""
    return io.BufferedReader(_Joined(head, rest), _CHUNK)


class _Joined(io.RawIOBase):
    def __init__(self, head: bytes, rest: io.BufferedReader) -> None:
        self._head, self._rest = memoryview(head), rest  # cutting a view copies nothing, whatever the length of a line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._head[: len(buffer)] or self._rest.read1(len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._rest.close()
        super().close()


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            json.loads(line)  # NaN
        except (ValueError, RecursionError):
            return False
    return True


_OTHER_KINDS = {
    ".xz": "unpack it first: xz -d {}",
    ".bz2": "unpack it first: bzip2 -d {}",
    ".zip": "unpack it first: unzip {}",
    ".arrow": "write it as Parquet first: datasets.Dataset.from_file(…).to_parquet(…)",
}


def _refuse_other_kinds(path: Path) -> None:
    if hint := _OTHER_KINDS.get(path.suffix):
        raise RecordError(f"{path}: files of kind {path.suffix} are not read; {hint.format(path)}")
    whole = Path(plain_name(path.name)).suffix
    if whole in (".parquet", ".pt") and whole != path.suffix:
        unpack = f"{'gzip' if path.suffix == '.gz' else 'zstd'} -d {path}"
        raise RecordError(f"{path}: a {whole} that is compressed as a whole is not read; unpack it first: {unpack}")
