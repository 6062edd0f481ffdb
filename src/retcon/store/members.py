"""Compressed JSON Lines in members of about 1 MB, for random access."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retcon.core.errors import RecordError
from retcon.store.compression import import_zstandard, is_compressed, read_errors
from retcon.store.whole import whole_file

MEMBER = 1 << 20
"""Bytes of lines in a member, before compression."""
_CHUNK = 1 << 18
_GZIP = b"\x1f\x8b"
_WBITS = 31


def default_suffix() -> str:
    """Return `.zst` if its package is installed, else `.gz`."""
    return ".zst" if find_spec("zstandard") is not None else ".gz"


def write_members(path: Path, lines: Iterable[bytes]) -> None:
    """Write a whole file atomically, compressed by its suffix. Raises StorageError."""
    with whole_file(path) as file:
        for part in _parts(lines):
            file.write(_compress(part, path.suffix))


def _parts(lines: Iterable[bytes]) -> Iterator[bytes]:
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= MEMBER:
            yield b"".join(part)
            part, size = [], 0
    if part:
        yield b"".join(part)


def _compress(data: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        compressed: bytes = import_zstandard("rollouts").ZstdCompressor(level=3).compress(data)
        return compressed
    if suffix == ".gz":
        packer = zlib.compressobj(1, wbits=_WBITS)
        return packer.compress(data) + packer.flush()
    return data


def lines_at(path: Path, start: int = 0) -> Iterator[tuple[int, int, bytes]]:
    """Yield (member offset, offset in its bytes, line) from `start` on.

    A plain file gives (line offset, 0, line). A last line without its end is left out, and so is all behind damage.
    start: offset of a member. Raises RecordError for damage, after the lines before it.
    """
    if not is_compressed(path):
        with path.open("rb") as file:
            file.seek(start)
            for line in file:
                if line.endswith(b"\n"):
                    yield start, 0, line
                start += len(line)
        return
    rest, base, skipped = b"", start, 0
    try:
        for offset, data in _members(path, start):
            if not rest:
                base, skipped = offset, 0
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield base, skipped, line + b"\n"
                skipped += len(line) + 1
    except read_errors() as error:
        raise RecordError(f"{path}: damaged after byte {base}: {error}") from error


def line_at(path: Path, member: int, offset: int) -> bytes:
    """Read one line by its offsets from `lines_at`. Raises RecordError if the file is shorter now."""
    try:
        if not is_compressed(path):
            with path.open("rb") as file:
                file.seek(member)
                return file.readline()
        found: list[bytes] = []
        for _, part in _members(path, member):
            here, offset = part[offset:], max(0, offset - len(part))
            if (end := here.find(b"\n")) >= 0:
                return b"".join((*found, here[: end + 1]))
            found.append(here)
    except read_errors() as error:
        raise RecordError(f"{path}: damaged after byte {member}: {error}") from error
    raise RecordError(f"{path}: the file is shorter than it was")


def replace_line(path: Path, member: int, offset: int, line: bytes | None) -> None:
    """Rewrite a file with the line at these offsets replaced or removed.

    Raises RecordError if there is no such line, the file is damaged or its last line is incomplete; StorageError.
    """
    size, found = 0, False

    def lines() -> Iterator[bytes]:
        nonlocal size, found
        for here, place, old in lines_at(path):
            size += len(old)
            if (here, place) != (member, offset):
                yield old
                continue
            found = True
            if line is not None:
                yield line
        if not found:
            raise RecordError(f"{path}: the file is not as it was: try again")
        if not is_compressed(path) and size != path.stat().st_size:
            raise RecordError(f"{path}: its last line is not whole; it is being written, or was cut off")

    write_members(path, lines())


def _members(path: Path, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield a member's offset and bytes, in parts; a truncated member gives its undamaged bytes."""
    with path.open("rb") as file:
        gzipped = file.read(2) == _GZIP
        file.seek(start)
        unpacker, offset, data = None, start, file.read(_CHUNK)
        while data:
            if unpacker is None:
                unpacker = zlib.decompressobj(_WBITS) if gzipped else _zstd_unpacker(path)
            out = unpacker.decompress(data)
            if out:
                yield offset, out
            if unpacker.eof:
                data, unpacker = unpacker.unused_data, None
                offset = file.tell() - len(data)
                data = data or file.read(_CHUNK)
            else:
                data = file.read(_CHUNK)


def _zstd_unpacker(path: Path) -> Any:
    return import_zstandard(str(path)).ZstdDecompressor().decompressobj()
