"""inspect_ai's logs: a JSON document with its samples in a list, or a zip with a member a sample (`.eval`).

Newer versions of inspect compress the members with zstd, and a zip of that kind (method 93) is beyond Python's zipfile
before 3.14: such members are read and written here, each whole.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from retcon.core.errors import RecordError
from retcon.store.arrays import ArrayWriter
from retcon.store.compression import zstandard
from retcon.store.types import Record, Source, Writer

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
