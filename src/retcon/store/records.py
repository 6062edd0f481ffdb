"""Records of other people's files, one at a time: JSON Lines, JSON arrays, one JSON document, inspect_ai's logs, and
Parquet, slime's dumps.

A record is the bytes that stand in the file, so that one that nothing changes can be written back as it was. Memory
holds one record, whatever the file's size, except for a document, which is one record or, as inspect_ai's `.json`
log and slime's dump, is read whole, and for Parquet, of which it holds some rows.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import pickle
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from retcon.core.errors import MissingExtra, RecordError
from retcon.core.installing import how_to_install
from retcon.store.compression import decompressed, plain_name, read_errors, read_sound, zstandard
from retcon.store.parquet import WHOLE, ParquetWriter, Record, RowsWriter, Shape, Source, Writer, parquet_source

# Rollout dumps of slime: a `.pt` of torch's with `rollout_id` and `samples`, each sample a record.
#
# Such a file is a pickle. It is read with `weights_only`, which makes nothing but plain values and tensors, and runs
# nothing. A sample that nothing changes is written back as the object that it is, tensors and all.

_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_SAMPLES = "samples"


class Dump:
    """What a file holds. frame: all that stands beside the samples."""

    def __init__(self, path: Path, value: object) -> None:
        samples = value.get(_SAMPLES) if isinstance(value, dict) else value
        if not isinstance(value, dict | list) or not isinstance(samples, list):
            raise RecordError(f"{path} is not a rollout dump of slime: it has no list of samples ({_held(value)})")
        if not all(isinstance(sample, dict) for sample in samples):
            raise RecordError(f"{path} is not a rollout dump of slime: its samples are not dictionaries")
        self.path = path
        self.frame = value if isinstance(value, dict) else None
        self.samples: list[dict[object, object]] = samples
        self.given = 0

    def records(self) -> Iterator[Record]:
        for number, sample in enumerate(self.samples, 1):
            self.given = number
            yield Record(as_json(sample, f"{self.path}, sample {number}"), number, str(self.path), "sample")


class DumpWriter(Writer):
    """Writes the samples that are kept, with what stood beside them, when all are there."""

    def __init__(self, dump: object, out: IO[bytes]) -> None:
        if not isinstance(dump, Dump):
            raise TypeError("a source that is not a dump")
        self._dump = dump
        self._out = out
        self._kept: list[object] = []

    def begin(self) -> None:
        """It is written in one go."""

    def add(self, record: Record, data: bytes) -> None:
        sample = self._dump.samples[record.number - 1]
        self._kept.append(sample if data is record.data else _changed(sample, record.data, data))

    def end(self) -> None:
        import torch

        frame = self._dump.frame
        torch.save(self._kept if frame is None else {**frame, _SAMPLES: self._kept}, self._out)


def dump_source(path: Path) -> Source:
    """The samples of a file. Raises RecordError where it cannot be read, or holds more than plain values and tensors;
    MissingExtra without torch."""
    dump = Dump(path, _loaded(path))
    size = path.stat().st_size
    return Source(path, "dump", dump.records(), lambda: size * dump.given // max(1, len(dump.samples)), table=dump)


def _loaded(path: Path) -> object:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(f"{path} needs torch to be read: {how_to_install('train')}") from error
    try:
        if not zipfile.is_zipfile(path) and path.stat():
            raise RecordError(
                f"{path} is not a dump that torch wrote: it is not a zip; write the samples as JSON Lines"
            )
        value: object = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except pickle.UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        raise RecordError(
            f"{path} is not read, because that could run code: it holds {f'a {found[1]}' if found else 'an object'}, "
            "which is neither a plain value nor a tensor; write the samples as JSON Lines"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise RecordError(f"{path} is not a readable dump: {error}") from error  # what a torn pickle gives
    return value


def as_json(sample: object, where: str) -> bytes:
    """A sample as JSON; tensors as lists. Raises RecordError where none can hold it."""
    try:
        try:
            return json.dumps(sample, ensure_ascii=False, default=_listed).encode()
        except UnicodeEncodeError:  # a lone surrogate
            return json.dumps(sample, default=_listed).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{where}: it cannot be written as JSON: {error}") from error


def _listed(value: object) -> object:
    import torch

    if isinstance(value, torch.Tensor):
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")


def _changed(sample: dict[object, object], old: bytes, new: bytes) -> dict[object, object]:
    """The sample with the fields that were changed; the others stay the objects that they are."""
    before, after = json.loads(old), json.loads(new)
    changed = {name: value for name, value in after.items() if name not in before or value != before[name]}
    return {**sample, **changed}


def _held(value: object) -> str:
    if isinstance(value, dict):
        return f"found {', '.join(map(str, list(value)[:8])) or 'nothing'}"
    return f"found {type(value).__name__}"


_ARRAY_CHUNK = 1 << 20


def items_of(file: io.BufferedReader, name: str, tail: list[bytes]) -> Iterator[Record]:
    """The items of a JSON array, decoded from a window that grows to one item's size at most (and is cut again).

    tail: gets what stands after the last item. Raises RecordError, which names the item, for what is no JSON.
    """
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    read = json.JSONDecoder().raw_decode
    window, at, number, ended = "", 0, 0, False
    opened = False
    lead = 0  # where what stands before the next item begins
    want = _ARRAY_CHUNK
    broken_file: tuple[type[Exception], ...] = (UnicodeDecodeError, *read_errors())
    with file:
        while True:
            window_end = len(window)
            while at < window_end and (window[at] in " \t\r\n" or (window[at] == "," and number and opened)):
                at += 1
            if not opened and at < window_end:
                opened, at = True, at + 1  # the bracket, which was seen before
                continue
            if at < window_end and window[at] == "]":
                try:
                    rest = window[at + 1 :] + decode(file.read(), final=True)
                except broken_file as broken:
                    raise RecordError(
                        f"{name}, item {number + 1}: the file cannot be read further: {broken}"
                    ) from broken
                if rest.strip():
                    raise RecordError(
                        f"{name}, item {number + 1}: the array is over, and more follows: {rest.strip()[:20]!r}; "
                        "lists, one a line, are read from a file that is called .jsonl"
                    )
                tail.append((window[lead : at + 1] + rest).encode())
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
                    data = read_sound(file, want)
                    window, at, lead = window[lead:] + decode(data, final=not data), at - lead, 0
                except broken_file as broken:
                    raise RecordError(
                        f"{name}, item {number + 1}: the file cannot be read further: {broken}"
                    ) from broken
                ended = not data
                want = max(_ARRAY_CHUNK, len(window))
                continue
            except RecursionError:
                raise RecordError(f"{name}, item {number + 1}: nested too deeply") from None
            number += 1
            before = window[lead:at].encode()
            yield Record(window[at:end].encode("utf-8", "surrogatepass"), number, name, "item", before)
            lead = at = end


class ArrayWriter(Writer):
    """Items with the line breaks and indentation that stood between them.

    tail: what stands after the last item, filled by the time of `end`. going_on: whether records stand before, in a
    file whose writing is resumed. joined: whether it is made of several arrays, so that no one's end is the end.
    """

    def __init__(
        self, out: IO[bytes], tail: Sequence[bytes] = (), *, going_on: bool = False, joined: bool = False
    ) -> None:
        self._write = out.write
        self._tail = tail
        self._any = going_on
        self._joined = joined

    def begin(self) -> None:
        """The bracket is written with the first record."""

    def add(self, record: Record, data: bytes) -> None:
        wanted, had = (b"," if self._any else b"["), record.lead.lstrip()[:1]
        lead = record.lead.replace(had, wanted, 1) if had else wanted + b"\n"
        self._write(lead + data.removeprefix(codecs.BOM_UTF8).rstrip())  # of a document
        self._any = True

    def end(self) -> None:
        tail = self._tail[-1] if self._tail and not self._joined else b"\n]\n"
        empty = tail.lstrip().startswith(b"[")  # the whole array
        self._write(tail if self._any or empty else b"[]\n")


# inspect_ai's logs: a JSON document with its samples in a list, or a zip with a member a sample (`.eval`).
#
# Newer versions of inspect compress the members with zstd, and a zip of that kind (method 93) is beyond Python's
# zipfile before 3.14: such members are read and written here, each whole.

_ZSTD = 93
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_KEY = re.compile(rb'[ \t\r\n,]*"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_BETWEEN = re.compile(rb"[ \t\r\n,]*")


class LogWriter(Writer):
    """A `.json` log: the samples as they come, all else as it stands. around: what stands before and after them."""

    def __init__(self, around: tuple[bytes, bytes], tail: Sequence[bytes], out: IO[bytes]) -> None:
        self._before, self._after = around
        self._samples, self._write = ArrayWriter(out, tail), out.write

    def begin(self) -> None:
        self._write(self._before)

    def add(self, record: Record, data: bytes) -> None:
        self._samples.add(record, data)

    def end(self) -> None:
        self._samples.end()
        self._write(self._after)


class EvalWriter(Writer):
    """A `.eval` log: the samples deflated, the other members copied."""

    def __init__(self, path: Path, out: IO[bytes]) -> None:
        self._path = path
        self._zip = zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED)

    def begin(self) -> None:
        with _Archive(self._path) as source:
            for name in source.names:
                if not _is_sample(name):
                    self._zip.writestr(name, source.read(name))

    def add(self, record: Record, data: bytes) -> None:
        self._zip.writestr(record.kind, data)

    def end(self) -> None:
        self._zip.close()

    def drop(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # its file may be closed, or its disk full
            self._zip.close()


def eval_source(path: Path) -> Source:
    """The samples of a `.eval` log. Raises RecordError for another file, MissingExtra where it needs zstd."""
    try:
        archive = _Archive(path)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise RecordError(f"{path} is not an inspect_ai log: {error}") from error
    done = [0]

    def records() -> Iterator[Record]:
        with archive:
            for number, name in enumerate(filter(_is_sample, archive.names), 1):
                data = archive.read(name)
                done[0] += archive.size(name)
                yield Record(data, number, str(path), name)

    return Source(path, "eval", records(), lambda: done[0])


def log_source(path: Path, whole: bytes, frame: Mapping[str, bytes], read: Callable[[], int]) -> Source:
    """The samples of a `.json` log that was read whole. Raises RecordError where they are no list."""
    where = f"{path}, samples"
    samples, array = values_in(frame["samples"], where), frame["samples"]
    start, at = _start_of("samples", whole, frame, where), 1
    records, lead = [], b"["
    for number, data in enumerate(samples, 1):
        begins = _end_of(_BETWEEN, array, at)
        records.append(Record(data, number, str(path), "sample", lead + array[at:begins]))
        at, lead = begins + len(data), b""
    around = whole[:start], whole[start + len(array) :]
    return Source(path, "log", iter(records), read, around=around, tail=[lead + array[at:]])


def _start_of(wanted: str, whole: bytes, frame: Mapping[str, bytes], where: str) -> int:
    """Where a key's value begins in the object that `frame` was made of."""
    at = whole.index(b"{") + 1
    for key, value in frame.items():
        at = _end_of(_KEY, whole, at)
        if not whole.startswith(value, at):
            raise RecordError(f"{where}: this key, or one before it, stands in the log twice")
        if key == wanted:
            return at
        at += len(value)
    raise KeyError(wanted)


def _end_of(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = pattern.match(data, at)
    return at if found is None else found.end()


def frame_of(whole: bytes) -> dict[str, bytes]:
    """The values of a JSON object by their keys, each as it stands. Raises ValueError where it is none."""
    try:
        return {key: bytes(raw) for key, raw in msgspec.json.decode(whole, type=dict[str, msgspec.Raw]).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = whole.decode("utf-8-sig")
        json.loads(text)  # NaN, which inspect writes as a score, is no JSON to msgspec
    frame: dict[str, bytes] = {}
    read = json.JSONDecoder().raw_decode
    at = _after_space(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = read(text, at)
        start = _after_space(text, text.index(":", at) + 1)
        _, at = read(text, start)
        frame[str(key)] = text[start:at].encode("utf-8", "surrogatepass")
        at = _after_space(text, at)
        at = _after_space(text, at + 1) if text[at] == "," else at
    return frame


def values_in(data: bytes, where: str) -> list[bytes]:
    """The items of a JSON array, each as it stands. Raises RecordError where it is none."""
    try:
        return [bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        text = data.decode()
        items: list[bytes] = []
        read = json.JSONDecoder().raw_decode
        at = _after_space(text, text.index("[") + 1)
        while text[at] != "]":
            _, end = read(text, at)
            items.append(text[at:end].encode("utf-8", "surrogatepass"))
            at = _after_space(text, end)
            at = _after_space(text, at + 1) if text[at] == "," else at
    except (ValueError, IndexError, RecursionError) as error:
        raise RecordError(f"{where}: not a list: {error}") from error
    return items


def _after_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _is_sample(name: str) -> bool:
    return name.startswith("samples/") and name.endswith(".json")


class _Archive:
    """A zip whose members may be compressed with zstd."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip = zipfile.ZipFile(path)
        self.names = self._zip.namelist()

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def size(self, name: str) -> int:
        return self._zip.getinfo(name).compress_size

    def read(self, name: str) -> bytes:
        """A member. Raises RecordError where it is damaged, or compressed in a way that nothing here reads."""
        info = self._zip.getinfo(name)
        try:
            if info.compress_type == _ZSTD and not hasattr(zipfile, "ZIP_ZSTANDARD"):
                return self._unpacked(info)
            return self._zip.read(info)
        except (NotImplementedError, zipfile.BadZipFile, zlib.error, OSError) as error:
            raise RecordError(
                f"{self._path}, {name}: {error}; `inspect log convert --to json` gives a log that can be read"
            ) from error

    def _unpacked(self, info: zipfile.ZipInfo) -> bytes:
        module = zstandard(str(self._path))
        file = self._zip.fp
        if file is None:
            raise zipfile.BadZipFile("closed")
        file.seek(info.header_offset)
        header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(header[-2] + header[-1], io.SEEK_CUR)  # the name and what zip64 adds
        try:
            unpack = module.ZstdDecompressor().stream_reader(
                io.BytesIO(file.read(info.compress_size)), read_across_frames=True
            )
            data = bytes(unpack.read())
        except module.ZstdError as error:
            raise zipfile.BadZipFile(str(error)) from error
        if zlib.crc32(data) != info.CRC:
            raise zipfile.BadZipFile("bad CRC-32")
        return data


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
