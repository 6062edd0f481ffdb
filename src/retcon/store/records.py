"""Records of third-party files, read one at a time and written back.

Formats: JSON Lines, JSON arrays, JSON documents, inspect_ai's logs, Parquet and slime's dumps. A record is the file's
own bytes, so that an unchanged one is written back as it was. Memory holds one record, except for Parquet (some rows),
and for documents, inspect_ai's `.json` logs and slime's dumps, which are read whole.
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
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from retcon.core.errors import MissingExtra, RecordError, nearest_path
from retcon.core.installing import how_to_install
from retcon.core.texts import counted
from retcon.store.compression import (
    decompressed,
    drop_duplicates_and_warn,
    import_zstandard,
    plain_name,
    read_errors,
    read_undamaged,
)
from retcon.store.lines import SUFFIX
from retcon.store.parquet import WHOLE, ParquetWriter, Record, RowsWriter, Shape, Source, Writer, parquet_source

# Rollout dumps of slime: a `.pt` of torch's with `rollout_id` and `samples`, each sample a record.
#
# Such a file is a pickle. It is read with `weights_only`, which creates only plain values and tensors, and runs no
# code. An unchanged sample is written back as the same object, tensors included.

_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_SAMPLES = "samples"


class SlimeDump:
    """A rollout dump of slime. frame: its fields, samples included."""

    def __init__(self, path: Path, value: object) -> None:
        samples = value.get(_SAMPLES) if isinstance(value, dict) else value
        if not isinstance(value, dict | list) or not isinstance(samples, list):
            raise RecordError(
                f"{path} is not a rollout dump of slime: it has no list of samples ({_describe_content(value)})"
            )
        if not all(isinstance(sample, dict) for sample in samples):
            raise RecordError(f"{path} is not a rollout dump of slime: its samples are not dictionaries")
        self.path = path
        self.frame = value if isinstance(value, dict) else None
        self.samples: list[dict[object, object]] = samples
        self.given = 0

    def records(self) -> Iterator[Record]:
        for number, sample in enumerate(self.samples, 1):
            self.given = number
            yield Record(encode_sample(sample, f"{self.path}, sample {number}"), number, str(self.path), "sample")


class DumpWriter(Writer):
    """Writer of a dump: the kept samples, with the other fields, at the end."""

    def __init__(self, dump: object, out: IO[bytes]) -> None:
        if not isinstance(dump, SlimeDump):
            raise TypeError(f"the source is not a dump: found {type(dump).__name__}")
        self._dump = dump
        self._out = out
        self._kept: list[object] = []

    def begin(self) -> None:
        """Write nothing: `end` writes all."""

    def add(self, record: Record, data: bytes) -> None:
        sample = self._dump.samples[record.number - 1]
        self._kept.append(sample if data is record.data else _changed(sample, record.data, data))

    def end(self) -> None:
        import torch

        frame = self._dump.frame
        torch.save(self._kept if frame is None else {**frame, _SAMPLES: self._kept}, self._out)


def dump_source(path: Path) -> Source:
    """Open a dump. Raises RecordError if it cannot be read or holds more than plain values and tensors, MissingExtra
    without torch."""
    dump = SlimeDump(path, _loaded(path))
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
        raise RecordError(f"{path} is not a readable dump: {error}") from error  # a truncated pickle
    return value


def encode_sample(sample: object, where: str) -> bytes:
    """Encode a sample as JSON, tensors as lists. Raises RecordError if JSON cannot hold it."""
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
    """Return the sample with changed fields replaced; the others stay the same objects."""
    before, after = json.loads(old), json.loads(new)
    changed = {name: value for name, value in after.items() if name not in before or value != before[name]}
    return {**sample, **changed}


def _describe_content(value: object) -> str:
    if isinstance(value, dict):
        return f"found {', '.join(map(str, list(value)[:8])) or 'nothing'}"
    return f"found {type(value).__name__}"


_ARRAY_CHUNK = 1 << 20


def iterate_items(file: io.BufferedReader, name: str, tail: list[bytes]) -> Iterator[Record]:
    """Yield the items of a JSON array, from a one-item window.

    tail: receives the bytes after the last item. Raises RecordError, which names the item, for invalid JSON.
    """
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    read = json.JSONDecoder().raw_decode
    window, at, number, ended = "", 0, 0, False
    opened = False
    lead = 0  # start of the separator before the next item
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
                    data = read_undamaged(file, want)
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
    """Writer of an array, with the items' own line breaks and indentation.

    tail: bytes after the last item, filled by the time of `end`. going_on: whether a resumed file holds records
    already. joined: whether several arrays become one, so that no tail of theirs is the end.
    """

    def __init__(
        self, out: IO[bytes], tail: Sequence[bytes] = (), *, going_on: bool = False, joined: bool = False
    ) -> None:
        self._write = out.write
        self._tail = tail
        self._any = going_on
        self._joined = joined

    def begin(self) -> None:
        """Write nothing: the bracket comes with the first record."""

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
    """Writer of a `.json` log, whose other fields stay unchanged. around: bytes before and after the samples."""

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
    """Writer of a `.eval` log: deflated samples, and copies of the other members."""

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
    """Open a `.eval` log. Raises RecordError for another file, MissingExtra if it needs zstd."""
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
    """Return the source of a `.json` log that was read whole. Raises RecordError if its samples are not a list."""
    where = f"{path}, samples"
    samples, array = split_array(frame["samples"], where), frame["samples"]
    start, at = _start_of("samples", whole, frame, where), 1
    records, lead = [], b"["
    for number, data in enumerate(samples, 1):
        begins = _end_of(_BETWEEN, array, at)
        records.append(Record(data, number, str(path), "sample", lead + array[at:begins]))
        at, lead = begins + len(data), b""
    around = whole[:start], whole[start + len(array) :]
    return Source(path, "log", iter(records), read, around=around, tail=[lead + array[at:]])


def _start_of(wanted: str, whole: bytes, frame: Mapping[str, bytes], where: str) -> int:
    """Return the offset of a key's value in the object that `frame` was made of."""
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


def split_object(whole: bytes) -> dict[str, bytes]:
    """Split a JSON object into the bytes of its values, by key. Raises ValueError if it is not an object."""
    try:
        return {key: bytes(raw) for key, raw in msgspec.json.decode(whole, type=dict[str, msgspec.Raw]).items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = whole.decode("utf-8-sig")
        json.loads(text)  # inspect writes NaN as a score, which msgspec refuses
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


def split_array(data: bytes, where: str) -> list[bytes]:
    """Split a JSON array into the bytes of its items. Raises RecordError if it is not an array."""
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
        """Read a member. Raises RecordError if it is damaged or its compression is not supported."""
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
        module = import_zstandard(str(self._path))
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


__all__ = ["STDIN", "WHOLE", "LinesWriter", "Record", "Shape", "Source", "Writer", "find_bom", "open_source", "writer"]

STDIN = Path("-")
KINDS = (".jsonl", ".ndjson", ".json", ".traj", ".eval", ".parquet", ".pt")
"""Suffixes of files that may hold transcripts, without that of a compression."""
DOCUMENTS = (".json", ".traj")
"""Suffixes of files with one JSON value."""
LINES = (".jsonl", ".ndjson")
"""Suffixes of files with one record a line."""
_CHUNK = 1 << 20
_MARKS = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}


def open_source(path: Path) -> Source:
    """Open a file, or `-` for standard input, plain or compressed.

    Compression is detected by first bytes. Raises RecordError if it cannot be read or its kind is not supported,
    MissingExtra if a package is missing.
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
    """Detect a file's shape by its first bytes and its name."""
    head = file.peek(_CHUNK)[:_CHUNK]
    if wide := find_bom(head):
        file.close()
        raise RecordError(f"{name}: it is {wide}, and not UTF-8: iconv -f {wide} -t UTF-8 rewrites it")
    first = head.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if first == b"[":
        if plain_name(path.name).endswith(LINES):
            line = file.readline()
            following = file.readline() if _is_json(line) else b""
            file = _prepend(line + following, file)
            if following.strip():  # each line is a list: a transcript that is nothing but its messages
                return Source(path, "lines", _lines(file, name), read)
        tail: list[bytes] = []
        return Source(path, "array", iterate_items(file, name, tail), read, tail=tail)
    if first == b"{" and plain_name(path.name).endswith(DOCUMENTS):
        return _document(path, file, name, read)
    return Source(path, "lines", _lines(file, name), read)


def find_bom(head: bytes) -> str:
    """Return a byte order mark's encoding, if not UTF-8, else ""."""
    for encoding, marks in _MARKS.items():  # the mark of UTF-32 begins as that of UTF-16
        if head.startswith(marks):
            return encoding
    return ""


def writer(source: Source, out: IO[bytes], *, kind: str = "", going_on: bool = False, joined: bool = False) -> Writer:
    """Return a writer of records to `out`.

    kind: suffix of a shape other than the source's: `.jsonl`, `.json` (an array), `.parquet`. going_on: whether the
    file holds records already. joined: whether it has several sources.
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
    """Writer of JSON Lines. going_on: whether a resumed file holds records already."""

    def __init__(self, out: IO[bytes], *, going_on: bool = False) -> None:
        self._write = out.write
        self._any = going_on

    def begin(self) -> None:
        """Write nothing: lines need no opening."""

    def add(self, record: Record, data: bytes) -> None:
        if record.kind != "line" or data is not record.data:
            end = b"\r\n" if record.kind == "line" and data.endswith(b"\r\n") else b"\n"
            data = _one_line(data.removesuffix(end)) + end
        if self._any:  # a byte order mark belongs only at a file's beginning
            data = data.removeprefix(codecs.BOM_UTF8)
        self._write(data if data.endswith(b"\n") else data + b"\n")
        self._any = True

    def end(self) -> None:
        """Write nothing: lines need no closing."""


class DocumentWriter(Writer):
    """Writer of one record with its own line breaks."""

    def __init__(self, out: IO[bytes]) -> None:
        self._write = out.write

    def begin(self) -> None:
        """Write nothing: a document needs no opening."""

    def add(self, record: Record, data: bytes) -> None:
        self._write(data)

    def end(self) -> None:
        """Write nothing: a document needs no closing."""


def _one_line(data: bytes) -> bytes:
    """Remove JSON's line breaks, which stand only between values."""
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
    """Open a `.json` that begins with an object: inspect_ai's log, one transcript or misnamed JSON Lines."""
    first = file.readline()
    rest_is_lines = _is_json(first)
    following = file.readline() if rest_is_lines else b""
    if rest_is_lines and following.strip():
        return Source(path, "lines", _lines(_prepend(first + following, file), name), read)
    with file:
        whole = first + following + file.read()
    try:
        frame = split_object(whole)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name}: not JSON: {error}") from error
    if {"samples", "eval"} <= set(frame):
        return log_source(path, whole, frame, read)
    return Source(path, "document", iter([Record(whole, 1, name, "document")]), read)


def _prepend(head: bytes, rest: io.BufferedReader) -> io.BufferedReader:
    """Put bytes that were read already back before a file."""
    return io.BufferedReader(_PrefixedReader(head, rest), _CHUNK)


class _PrefixedReader(io.RawIOBase):
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


def expand(words: Sequence[str], out: Path | None = None) -> Iterator[tuple[Path, str]]:
    """Find the input files of words, with names below their folders.

    A word is a file, a folder (all transcripts below it), a pattern, or `-`. out: where results go; what lies in
    such a folder below a searched one is skipped, with a warning for files that were not made from the rest. Raises
    RecordError for a word that matches nothing."""
    for word in words:
        path = Path(word)
        if word == "-":
            yield STDIN, "stdin.jsonl"
        elif path.is_dir():
            made = None if out is None else _below(path, out)
            there = sorted(p for p in path.rglob("*") if p.is_file() and _is_transcript_file(p))
            found = drop_duplicates_and_warn(p for p in there if made not in p.parents)
            if not found:
                but = f", except in {made}, where the output goes" if there else ""
                raise RecordError(
                    f"{path}: no file in this folder or below is {', '.join(KINDS[:-1])} or {KINDS[-1]}{but}"
                )
            names = [str(p.relative_to(path)) for p in found]
            made_of = {made / name for name in names} if made is not None else set()
            if others := [p for p in there if made in p.parents and p not in made_of]:
                why = f"not read, as the output goes to {made}: {counted(len(others), 'file')} there, such as"
                warnings.warn(f"{why} {others[0]}", UserWarning, stacklevel=2)
            yield from zip(found, names, strict=True)
        elif path.exists():
            yield path, path.name
        elif any(c in word for c in "*?["):
            root = Path(path.anchor) if path.is_absolute() else Path()
            try:
                matches = sorted(p for p in root.glob(str(path.relative_to(root))) if p.is_file())
            except ValueError as error:  # before Python 3.13, of `**.jsonl`
                raise RecordError(f"{word} is no pattern of files: {error}") from error
            if not matches:
                raise RecordError(f"no file matches {word}")
            yield from ((p, p.name) for p in matches)
        else:
            raise RecordError(f"{path} does not exist{nearest_path(path)}")


def _below(folder: Path, other: Path) -> Path | None:
    """Return `other` as a path below `folder`; None if it is not."""
    inner, root = Path(os.path.realpath(other)), Path(os.path.realpath(folder))  # not `resolve`: of a loop that raises
    return folder / inner.relative_to(root) if root in inner.parents else None


def _is_transcript_file(path: Path) -> bool:
    name = plain_name(path.name)
    ours = name.endswith((".audit.jsonl", SUFFIX, SUFFIX + ".json"))
    return name.endswith(KINDS) and not ours and not name.startswith(".")
