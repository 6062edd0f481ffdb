"""Compressed files: detected by first bytes, written by suffix."""

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
"""A frame, or a skippable one, which pzstd writes before each."""
_CHUNK = 1 << 20


def plain_name(name: str) -> str:
    """Return a file's name without the suffix of its compression."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def drop_duplicates(files: Iterable[Path]) -> list[Path]:
    """Leave out compressed copies beside a plain file, and zstd beside gzip.

    `gzip -k` leaves such copies; a resumed run may have written the plain one since."""
    plain = {path: path.with_name(plain_name(path.name)) for path in files}
    first: dict[Path, Path] = {}
    for path in sorted(plain):
        first.setdefault(plain[path], path)
    return [path for path in plain if first[plain[path]] == path]


def drop_duplicates_and_warn(files: Iterable[Path]) -> list[Path]:
    """Drop duplicates (`drop_duplicates`), and warn of them."""
    found = list(files)
    read = drop_duplicates(found)
    if left := sorted({*found} - {*read}):
        message = f"not read, as the same name stands beside it without its suffix or as .gz: {left[0]}"
        warnings.warn(message + f", and {len(left) - 1} more" * (len(left) > 1), UserWarning, stacklevel=3)
    return read


def decompressed(file: io.BufferedReader, what: str) -> io.BufferedReader:
    """Decompress gzip and zstd, by first bytes. what: the file's name. Raises MissingExtra without zstd's package."""
    head = file.peek(4)[:4]
    if head.startswith(_GZIP):
        return io.BufferedReader(cast(io.RawIOBase, _GzipReader(fileobj=file)), _CHUNK)
    if _ZSTD.match(head):
        try:
            module = import_zstandard(what)
        except MissingExtra:
            file.close()
            raise
        return io.BufferedReader(_ZstdReader(file, module), _CHUNK)
    return file


def is_compressed(path: Path) -> bool:
    """Whether a file's suffix or first bytes are of a compression. Raises OSError if it exists and cannot be read."""
    if path.suffix in SUFFIXES or not path.exists():
        return path.suffix in SUFFIXES
    with path.open("rb") as file:
        head = file.read(4)
    return head.startswith(_GZIP) or _ZSTD.match(head) is not None


def compressed(file: IO[bytes], name: str) -> IO[bytes]:
    """Return a file that compresses into `file`, by the name's suffix; `file` itself without one.

    Closing it leaves `file` open. A later part is its own member (frame), without name or time, so that equal records
    give equal bytes. Raises MissingExtra for zstd without its package."""
    if name.endswith(".gz"):
        return cast(IO[bytes], _GzipWriter(file))
    if name.endswith(".zst"):
        return cast(IO[bytes], import_zstandard(name).ZstdCompressor().stream_writer(file, closefd=False))
    return file


def read_errors() -> tuple[type[Exception], ...]:
    """Return the errors that reading a damaged file may raise."""
    errors: tuple[type[Exception], ...] = (EOFError, zlib.error, OSError)
    try:
        from zstandard import ZstdError
    except ImportError:
        return errors
    return (*errors, ZstdError)


def read_undamaged(file: io.BufferedReader, size: int) -> bytes:
    """Read up to `size` bytes, including all before damage; the next call raises. `file.read` would lose them."""
    parts: list[bytes] = []
    try:
        while size > 0 and (part := file.read1(size)):
            parts.append(part)
            size -= len(part)
    except read_errors():
        if not parts:
            raise
    return b"".join(parts)


def import_zstandard(what: str) -> ModuleType:
    """Import zstandard. what: the file that needs it, for the message. Raises MissingExtra if it is missing."""
    try:
        module: ModuleType = importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingExtra(f"{what} is compressed with zstd: {how_to_install('formats')}") from error
    return module


class _GzipWriter:
    """Compressing writer. Without `close` it writes no trailer, unlike gzip's own when it is garbage-collected."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._compress = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)  # gzip's head and sum, without name or time
        self.closed = False

    def __enter__(self) -> _GzipWriter:
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


class _GzipReader(gzip.GzipFile):
    """Decompressing reader. Gives all bytes before a cut or damage; closes the file that it reads."""

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self.read1(len(buffer))  # `read` would lose its data when the next part is damaged
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        inner = self.fileobj
        super().close()
        if isinstance(inner, io.IOBase):
            inner.close()


class _ZstdReader(io.RawIOBase):
    """Reader of zstd frames. The package's own stream reports no error if the file is cut off."""

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
