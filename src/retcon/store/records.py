"""Records of other people's files, one at a time: JSON Lines, JSON arrays, one JSON document, inspect_ai's logs.

A record is the bytes that stand in the file, so that one that nothing changes can be written back as it was. Memory
holds one record, whatever the file's size, except for a document, which is one record or, as inspect_ai's `.json`
log, is read whole.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NamedTuple, Protocol, cast

import msgspec

from retcon.core.errors import RecordError

STDIN = Path("-")
Shape = Literal["lines", "array", "log", "eval"]
_CHUNK = 1 << 20


class Record(NamedTuple):
    """data: one JSON value. number: 1-based. file, kind: what it is the number of, or the member of an archive."""

    data: bytes
    number: int
    file: str
    kind: str = "line"

    @property
    def where(self) -> str:
        """File and line, item or sample, for messages."""
        return (
            f"{self.file}, {self.kind} {self.number}"
            if self.kind in ("line", "item", "sample")
            else f"{self.file}, {self.kind}"
        )


@dataclass(slots=True)
class Source:
    """A file that is being read. shape: how its records are held. read: bytes of the file so far, for progress.

    frame: of a log, what is not a sample: the keys before and after, as they stand in the file.
    """

    path: Path
    shape: Shape
    records: Iterator[Record]
    read: Callable[[], int]
    frame: Mapping[str, msgspec.Raw] = field(default_factory=dict)


class Writer(Protocol):
    """Writes records in a shape; what is written by `begin`, `add` and `end` together is the file."""

    def begin(self) -> None: ...

    def add(self, record: Record, data: bytes) -> None: ...

    def end(self) -> None: ...


def open_source(path: Path) -> Source:
    """Open a file, or `-` for standard input, plain or gzip (seen from its bytes, not its name).

    Raises RecordError where it cannot be read, or is of a kind that is not.
    """
    _refuse_other_kinds(path)
    if path.suffix == ".eval":
        return _eval_source(path)
    try:
        raw = io.FileIO(sys.stdin.fileno(), closefd=False) if path == STDIN else io.FileIO(path)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    seekable = raw.seekable()

    def read() -> int:
        return raw.tell() if seekable and not raw.closed else 0

    file: io.BufferedReader = io.BufferedReader(raw, _CHUNK)
    name = "standard input" if path == STDIN else str(path)
    if file.peek(2)[:2] == b"\x1f\x8b":
        file = io.BufferedReader(cast(io.FileIO, _Gzip(fileobj=file)), _CHUNK)
    first = _first_byte(file, name)
    if first == b"[":
        return Source(path, "array", _array(file, name), read)
    if path.name.removesuffix(".gz").endswith(".json") and first == b"{":
        return _document(path, file, name, read)
    return Source(path, "lines", _lines(file, name), read)


def writer(source: Source, out: IO[bytes]) -> Writer:
    """What writes records to `out` in the shape of a source."""
    if source.shape == "eval":
        return _EvalWriter(source.path, out)
    if source.shape == "log":
        return _LogWriter(source.frame, out)
    return ArrayWriter(out) if source.shape == "array" else LinesWriter(out)


class LinesWriter:
    def __init__(self, out: IO[bytes]) -> None:
        self._write = out.write

    def begin(self) -> None:
        """Lines need no opening."""

    def add(self, record: Record, data: bytes) -> None:
        self._write(data if data.endswith(b"\n") else data + b"\n")

    def end(self) -> None:
        """Nor a closing."""


class ArrayWriter:
    """going_on: whether records stand before, in a file that is gone on with."""

    def __init__(self, out: IO[bytes], *, going_on: bool = False) -> None:
        self._write = out.write
        self._before = b",\n" if going_on else b"[\n"

    def begin(self) -> None:
        """The bracket is written with the first record."""

    def add(self, record: Record, data: bytes) -> None:
        self._write(self._before + data.rstrip())
        self._before = b",\n"

    def end(self) -> None:
        self._write(b"\n]\n" if self._before == b",\n" else b"[]\n")


class _LogWriter:
    """An inspect_ai `.json` log: its keys in their order, the samples as they come."""

    def __init__(self, frame: Mapping[str, msgspec.Raw], out: IO[bytes]) -> None:
        self._frame = frame
        self._write = out.write
        self._any = False

    def begin(self) -> None:
        self._write(b"{")
        for key, value in self._frame.items():
            if key == "samples":
                break
            self._write(msgspec.json.encode(key) + b":" + bytes(value) + b",\n")
        self._write(b'"samples":[')

    def add(self, record: Record, data: bytes) -> None:
        self._write((b",\n" if self._any else b"\n") + data)
        self._any = True

    def end(self) -> None:
        keys = list(self._frame)
        self._write(b"\n]")
        for key in keys[keys.index("samples") + 1 :]:
            self._write(b",\n" + msgspec.json.encode(key) + b":" + bytes(self._frame[key]))
        self._write(b"}\n")


class _EvalWriter:
    """An inspect_ai `.eval` log, a zip with one member a sample; the other members are copied."""

    def __init__(self, path: Path, out: IO[bytes]) -> None:
        self._path = path
        self._out = out
        self._zip: zipfile.ZipFile | None = None

    def begin(self) -> None:
        self._zip = zipfile.ZipFile(self._out, "w", zipfile.ZIP_DEFLATED)
        with zipfile.ZipFile(self._path) as source:
            for member in source.infolist():
                if not _is_sample(member.filename):
                    self._zip.writestr(member.filename, source.read(member))

    def add(self, record: Record, data: bytes) -> None:
        if self._zip is not None:
            self._zip.writestr(record.kind, data)

    def end(self) -> None:
        if self._zip is not None:
            self._zip.close()


class _Gzip(gzip.GzipFile):
    """Closes what it reads from, too."""

    def close(self) -> None:
        inner = self.fileobj
        super().close()
        if isinstance(inner, io.IOBase):
            inner.close()


def _lines(file: IO[bytes], name: str) -> Iterator[Record]:
    number = 0
    try:
        with file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield Record(line, number, name)
    except (EOFError, zlib.error, OSError) as error:
        raise RecordError(f"{name}, line {number + 1}: the file cannot be read further: {error}") from error


def _array(file: IO[bytes], name: str) -> Iterator[Record]:
    """The items of a JSON array, decoded from a window that grows to one item's size at most (and is cut again)."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    read = json.JSONDecoder().raw_decode
    window, at, number, ended = "", 0, 0, False
    opened = False
    want = _CHUNK
    with file:
        while True:
            window_end = len(window)
            while at < window_end and (window[at] in " \t\r\n" or (window[at] == "," and number and opened)):
                at += 1
            if not opened and at < window_end:
                opened, at = True, at + 1  # the bracket, which was seen before
                continue
            if at < window_end and window[at] == "]":
                return
            try:
                if at == window_end:
                    raise json.JSONDecodeError("the array is not closed", window, at)
                _, end = read(window, at)
                if end == window_end and not ended:
                    raise json.JSONDecodeError("may go on", window, at)  # a number could
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                if ended:
                    raise RecordError(f"{name}, item {number + 1}: not JSON: {error}") from error
                try:
                    data = file.read(want)
                    window, at = window[at:] + decode(data, final=not data), 0
                except (EOFError, zlib.error, OSError, UnicodeDecodeError) as broken:
                    raise RecordError(
                        f"{name}, item {number + 1}: the file cannot be read further: {broken}"
                    ) from broken
                ended = not data
                want = max(_CHUNK, len(window))
                continue
            number += 1
            yield Record(window[at:end].encode("utf-8", "surrogatepass"), number, name, "item")
            at = end


def _document(path: Path, file: IO[bytes], name: str, read: Callable[[], int]) -> Source:
    """A `.json` that begins with an object: inspect_ai's log, one transcript, or JSON Lines under another name."""
    first = file.readline()
    rest_is_lines = _is_json(first)
    following = file.readline() if rest_is_lines else b""
    if rest_is_lines and following.strip():
        return Source(path, "lines", _lines(_chained(first + following, file), name), read)
    with file:
        whole = first + following + file.read()
    try:
        frame = msgspec.json.decode(whole, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{name}: not JSON: {error}") from error
    if not {"samples", "eval"} <= set(frame):
        one = msgspec.json.format(whole, indent=-1) + b"\n"
        return Source(path, "lines", iter([Record(one, 1, name)]), read)
    samples = msgspec.json.decode(frame["samples"], type=list[msgspec.Raw])
    records = (Record(bytes(s), n, name, "sample") for n, s in enumerate(samples, 1))
    return Source(path, "log", records, read, frame)


def _chained(head: bytes, rest: IO[bytes]) -> IO[bytes]:
    """A file whose beginning was read already."""
    return cast(IO[bytes], io.BufferedReader(_Joined(head, rest), _CHUNK))


class _Joined(io.RawIOBase):
    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head, self._rest = memoryview(head), rest  # cutting a view copies nothing, whatever the length of a line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._rest.close()
        super().close()


def _eval_source(path: Path) -> Source:
    try:
        with zipfile.ZipFile(path) as file:
            names = [m.filename for m in file.infolist() if _is_sample(m.filename)]
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise RecordError(f"{path} is no inspect_ai log: {error}") from error
    done = [0]

    def records() -> Iterator[Record]:
        with zipfile.ZipFile(path) as file:
            for number, name in enumerate(names, 1):
                try:
                    data = file.read(name)
                except (NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
                    raise RecordError(
                        f"{path}, {name}: {error}; `inspect log convert --to json` gives a log that can be read"
                    ) from error
                done[0] += file.getinfo(name).compress_size
                yield Record(data, number, str(path), name)

    return Source(path, "eval", records(), lambda: done[0])


def _is_sample(name: str) -> bool:
    return name.startswith("samples/") and name.endswith(".json")


def _first_byte(file: io.BufferedReader, name: str) -> bytes:
    try:
        head = file.peek(_CHUNK)[:_CHUNK].removeprefix(codecs.BOM_UTF8).lstrip()
    except (EOFError, zlib.error, OSError) as error:
        raise RecordError(f"{name}, line 1: the file cannot be read: {error}") from error
    return head[:1]


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


_OTHER_KINDS = {
    ".zst": "unpack it first: zstd -d {}",
    ".xz": "unpack it first: xz -d {}",
    ".bz2": "unpack it first: bzip2 -d {}",
    ".parquet": "write it as JSON Lines first: pandas.read_parquet(…).to_json(…, orient='records', lines=True)",
    ".zip": "unpack it first: unzip {}",
}


def _refuse_other_kinds(path: Path) -> None:
    if hint := _OTHER_KINDS.get(path.suffix):
        raise RecordError(f"{path}: files of kind {path.suffix} are not read; {hint.format(path)}")
