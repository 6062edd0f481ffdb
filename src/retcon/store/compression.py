"""Compressed files: read by what their first bytes say, written by what their names say."""

from __future__ import annotations

import gzip
import importlib
import io
import re
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import IO, cast

from retcon.core.errors import MissingExtra
from retcon.core.installing import how_to_install

SUFFIXES = (".gz", ".zst")
_GZIP = b"\x1f\x8b"
_ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""A frame; or one that readers skip, which pzstd writes before each."""
_CHUNK = 1 << 20


def plain_name(name: str) -> str:
    """A file's name without the suffix of its compression."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def read_once(files: Iterable[Path]) -> list[Path]:
    """Without those that stand compressed beside the same name plain, as `gzip -k` leaves them (a run that went on may
    have written the plain one since), or as zstd beside gzip."""
    plain = {path: path.with_name(plain_name(path.name)) for path in files}
    first: dict[Path, Path] = {}
    for path in sorted(plain):
        first.setdefault(plain[path], path)
    return [path for path in plain if first[plain[path]] == path]


def told_once(files: Iterable[Path]) -> list[Path]:
    """As `read_once`; what is left out is told (a warning)."""
    found = list(files)
    read = read_once(found)
    if left := sorted({*found} - {*read}):
        told = f"not read, as the same name stands beside it without its suffix or as .gz: {left[0]}"
        warnings.warn(told + f", and {len(left) - 1} more" * (len(left) > 1), UserWarning, stacklevel=3)
    return read


def decompressed(file: io.BufferedReader, what: str) -> io.BufferedReader:
    """The file's own bytes, gzip and zstd undone. what: its name. Raises MissingExtra for zstd without its package."""
    head = file.peek(4)[:4]
    if head.startswith(_GZIP):
        return io.BufferedReader(cast(io.RawIOBase, _Gzip(fileobj=file)), _CHUNK)
    if _ZSTD.match(head):
        try:
            module = zstandard(what)
        except MissingExtra:
            file.close()
            raise
        return io.BufferedReader(_Zstd(file, module), _CHUNK)
    return file


def is_compressed(path: Path) -> bool:
    """Whether a file's name or its first bytes say so. Raises OSError where it is there and cannot be read."""
    if path.suffix in SUFFIXES or not path.exists():
        return path.suffix in SUFFIXES
    with path.open("rb") as file:
        head = file.read(4)
    return head.startswith(_GZIP) or _ZSTD.match(head) is not None


def compressed(file: IO[bytes], name: str) -> IO[bytes]:
    """What compresses into `file`, by the name's suffix; `file` itself where it has none. Closing it leaves `file`
    open. A later part is a member (frame) of its own, and no name or time is inside: the same records give the same
    bytes. Raises MissingExtra for zstd without its package."""
    if name.endswith(".gz"):
        return cast(IO[bytes], _Gzipping(file))
    if name.endswith(".zst"):
        return cast(IO[bytes], zstandard(name).ZstdCompressor().stream_writer(file, closefd=False))
    return file


def read_errors() -> tuple[type[Exception], ...]:
    """What reading a damaged file may raise."""
    errors: tuple[type[Exception], ...] = (EOFError, zlib.error, OSError)
    try:
        from zstandard import ZstdError
    except ImportError:
        return errors
    return (*errors, ZstdError)


def read_sound(file: io.BufferedReader, size: int) -> bytes:
    """As `file.read(size)`, which loses what stands before the place where a file is damaged; the error comes with the
    next call."""
    parts: list[bytes] = []
    try:
        while size > 0 and (part := file.read1(size)):
            parts.append(part)
            size -= len(part)
    except read_errors():
        if not parts:
            raise
    return b"".join(parts)


def zstandard(what: str) -> ModuleType:
    """The package. what: the file that needs it, for the message. Raises MissingExtra where it is not there."""
    try:
        module: ModuleType = importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingExtra(f"{what} is compressed with zstd: {how_to_install('formats')}") from error
    return module


class _Gzipping:
    """One that is given up without being closed writes nothing; gzip's own does when it is collected, or complains."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._compress = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)  # gzip's head and sum, without name or time
        self.closed = False

    def __enter__(self) -> _Gzipping:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> int:
        if ready := self._compress.compress(data):
            self._file.write(ready)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.write(self._compress.flush())


class _Gzip(gzip.GzipFile):
    """Closes what it reads from, too. Of a file that is cut off or damaged, gives all that stands before."""

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self.read1(len(buffer))  # `read` would lose what it has when the next part is none
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        inner = self.fileobj
        super().close()
        if isinstance(inner, io.IOBase):
            inner.close()


class _Zstd(io.RawIOBase):
    """Frame after frame. The package's own stream ends without a word where a file is cut off."""

    def __init__(self, file: IO[bytes], module: ModuleType) -> None:
        self._file = file
        self._new = module.ZstdDecompressor().decompressobj
        self._frame = self._new()
        self._begun = False
        self._waiting = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._waiting:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._new(), False
            data = data or self._file.read(_CHUNK)
            if not data:
                if self._begun:
                    raise EOFError("the file is cut off within a frame of zstd")
                return 0
            self._begun = True
            self._waiting = self._frame.decompress(data)
        data = self._waiting[: len(buffer)]
        self._waiting = self._waiting[len(data) :]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
