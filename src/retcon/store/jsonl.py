"""Trajectory files: JSON Lines, plain or compressed, one trajectory a line."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import msgspec

from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError, nearest, nearest_path
from retcon.core.types import Completion, Pair, Trajectory, Written
from retcon.store.compression import SUFFIXES, compressed, decompressed, is_compressed, read_errors
from retcon.store.lines import LineAppender
from retcon.store.whole import check_regular_file, lock_file, storage_errors, whole_file

BEGINNING = b'{"id":'
"""Beginning of every line that is written here."""


def write(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Write a whole file atomically; on any error it stays unchanged. Returns the number of lines.

    Raises StorageError if the file cannot be written (a full disk), RecordError for a number that is not finite,
    MissingExtra for zstd without its package.
    """
    return write_lines(path, chain.from_iterable(map(lines_of, trajectories)))


def write_lines(path: str | Path, lines: Iterable[bytes]) -> int:
    """Write lines, with their line ends, like `write`."""
    path = Path(path)
    check_regular_file(path)
    count = 0
    with whole_file(path) as file, _compressing(file, path) as out:
        for line in lines:
            out.write(line)
            count += 1
    return count


class TruncatedLine(RecordError):
    """A trajectory's last line is cut off."""


class Appender:
    """Appender of trajectories to a plain file, one `add` at a time; see `LineAppender`. Use it in a `with`.

    Raises RecordError if the file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._lines = LineAppender(path)

    def add(self, trajectory: Trajectory) -> None:
        """Append a trajectory, after its descendants."""
        self._lines.add(b"".join(lines_of(trajectory)), name=f"trajectory {trajectory.id}")

    def close(self) -> None:
        """Close the file, once it is safe on the disk."""
        self._lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: str | Path, *, on_bad: Callable[[RecordError], None] | None = None) -> Iterator[Trajectory]:
    """Yield the trajectories of a file, with children (see `attach_children`). Empty lines are ignored.

    Raises RecordError, which begins `FILE, line N:`, at a line that is not a trajectory; `on_bad` gets the error
    instead, and reading continues with the next line. A file that cannot be opened always raises.
    """
    return attach_children(_read_each(Path(path), on_bad))


def attach_children(nodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Attach children to the parents after them; yield orphans alone."""
    waiting: dict[str, list[Trajectory]] = {}
    for alone in nodes:
        children = waiting.pop(alone.id, None) if waiting else None
        node = replace(alone, children=tuple(children)) if children else alone
        if node.parent is None:
            yield node
        else:
            waiting.setdefault(node.parent.trajectory, []).append(node)
    for orphans in waiting.values():
        yield from orphans


def _read_each(path: Path, on_bad: Callable[[RecordError], None] | None) -> Iterator[Trajectory]:
    check_not_folder(path)
    number = 0
    try:
        with open_lines(path) as file:
            for line in file:
                number += 1
                if not line.strip():
                    continue
                try:
                    yield read_line(line, f"{path}, line {number}")
                except RecordError as error:
                    if on_bad is None:
                        raise
                    on_bad(error)
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except read_errors() as error:
        broken = RecordError(f"{path}, line {number + 1}: the file cannot be read further: {error}")
        if on_bad is None or isinstance(error, PermissionError):
            raise broken from error
        on_bad(broken)


def lines_of(trajectory: Trajectory) -> Iterator[bytes]:
    """Encode a trajectory and its descendants, one line each; see `line_of`."""
    return map(line_of, trajectory.tree)


def line_of(trajectory: Trajectory) -> bytes:
    """Encode a trajectory, without children, as a line with its line end. Raises RecordError for numbers that are not
    finite."""
    if trajectory.children:
        trajectory = replace(trajectory, children=())
    try:
        line = msgspec.json.encode(trajectory)
        if b"null" not in line and b'"extra":' not in line:  # numbers that are not finite; unknown fields
            return line + b"\n"
    except (UnicodeEncodeError, TypeError, msgspec.MsgspecError):
        pass  # a lone surrogate, or a value that JSON lacks
    value = to_dict(trajectory)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError) as error:
        raise RecordError(f"trajectory {trajectory.id} cannot be written as JSON: {error}") from error
    # Lone surrogates, which a tool's output may hold, are not UTF-8: '?' rather than a lost trajectory.
    return text.encode("utf-8", "replace") + b"\n"


def read_line(line: bytes, where: str) -> Trajectory:
    """Decode the trajectory of a line. where: file and line, which an error begins with. Raises RecordError,
    TruncatedLine if only its end is missing."""
    try:
        return from_dict(msgspec.json.decode(line), where)
    except RecursionError:
        raise RecordError(f"{where}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if line.endswith(b"\n"):
            raise RecordError(f"{where}: not JSON: {error}") from error
        kind = TruncatedLine if line.startswith(BEGINNING[: len(line)]) else RecordError
        raise kind(f"{where}: cut off in the middle (was its writer stopped?): not JSON: {error}") from error


def check_not_folder(path: Path) -> None:
    """Check that `path` is not a folder. Raises RecordError, which lists the folder's files, audits first, without
    metrics."""
    if path.is_dir():
        found = (p for p in path.rglob("*.jsonl*") if p.name != "metrics.jsonl")
        inside = sorted((".audit." not in p.name, str(p.relative_to(path))) for p in found)
        names = [name for _, name in inside[:4]]
        there = f": it holds {', '.join(names)}{', …' if len(inside) > 4 else ''}" if inside else ""
        raise RecordError(f"{path} is a folder; name a file of trajectories{there}")


def open_lines(path: Path) -> IO[bytes]:
    """Open a file, or its compressed copy if only that exists, decompressed. Raises MissingExtra for zstd without its
    package."""
    if not path.exists():
        packed = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
        path = next((file for file in packed if file.is_file()), path)
    return cast(IO[bytes], decompressed(path.open("rb"), str(path)))


def _compressing(file: IO[bytes], path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    return compressed(file, path.name) if path.suffix in SUFFIXES else contextlib.nullcontext(file)


@contextmanager
def open_appender(path: Path, flag: str, id: str) -> Iterator[Callable[[Trajectory], str]]:
    """Lock a file; yield a function that appends a trajectory and returns its id.

    That is `id`, or `id-2`, `id-3`, … if taken. An incomplete last line is removed, and a compressed file rewritten. A
    new file is removed again if nothing is added.

    flag: the user's option for it, for messages. Raises at once, before any work: RecordError if the file is not
    regular, not of trajectories, or compressed without the suffix; CheckpointError if another process adds to it,
    StorageError if it cannot be written, MissingExtra for zstd without its package.
    """
    check_regular_file(path, flag)
    new = not os.path.lexists(path)
    with lock_file(path):
        try:
            free = _free_id(path, flag, id)
            if path.suffix in SUFFIXES:
                with storage_errors(path), tempfile.TemporaryFile(dir=path.parent):
                    pass
            elif is_compressed(path):
                raise RecordError(f"{flag} {path}: it is compressed but its suffix is not: name it .gz or .zst, "
                                  "or choose another")  # fmt: skip

            def add(trajectory: Trajectory) -> str:
                _add(path, _renamed(trajectory, trajectory.id, free))
                return free

            yield add
        finally:
            if new and path.is_file() and not path.stat().st_size:
                path.unlink()


def _renamed(trajectory: Trajectory, old: str, new: str) -> Trajectory:
    """Rename a root, and the prefix of its descendants' ids."""
    parent = trajectory.parent
    return replace(
        trajectory,
        id=new + trajectory.id.removeprefix(old),
        parent=parent and replace(parent, trajectory=new + parent.trajectory.removeprefix(old)),
        children=tuple(_renamed(child, old, new) for child in trajectory.children),
    )


def _free_id(path: Path, flag: str, id: str) -> str:
    def foreign(error: RecordError) -> None:
        if not isinstance(error, TruncatedLine):
            message = f"{flag} {path}: it is not a file of trajectories, and stays unchanged ({error})"
            raise RecordError(message) from error

    taken = {one.id for one in read(path, on_bad=foreign)}
    return next(name for name in chain((id,), (f"{id}-{n}" for n in count(2))) if name not in taken)


def _add(path: Path, trajectory: Trajectory) -> None:
    if path.suffix in SUFFIXES:
        write(path, chain(read(path, on_bad=lambda _: None), (trajectory,)))
        return
    with Appender(path) as file:
        file.add(trajectory)


# Files of preference pairs: JSON Lines, one pair a line, as TRL's `DPOTrainer` reads them.
#
#     {"prompt": …, "chosen": …, "rejected": …, "id": …, "tokens": {…}, …}
#
# prompt, chosen and rejected: TRL's `preference` type with an explicit prompt; text (its standard format) or lists of
# messages (its conversational format), the same in all three. id: where the pair is from. tokens: only where the ids
# are known: `prompt`, `chosen`, `rejected`, `chosen_mask` and `rejected_mask`, lists of integers, a mask null where it
# is not known. TRL encodes the text itself and counts all of a completion; a loss that is to count the calls alone, and
# on the very ids that were sampled, takes them from here. All else comes from `Pair.about`.

COLUMNS = ("prompt", "chosen", "rejected", "id", "tokens")


def write_pairs(path: str | Path, pairs: Iterable[Pair]) -> int:
    """Write a whole file atomically (see `write_lines`); return the count.

    Compressed if its name ends in `.gz`. Raises RecordError if the file cannot be written or a pair is not JSON.
    """
    return write_lines(path, map(pair_line, pairs))


def pair_line(pair: Pair) -> bytes:
    """Encode a pair as a line, with its line end. Raises RecordError if it is not JSON."""
    taken = sorted(set(pair.about) & set(COLUMNS))
    if taken:
        raise RecordError(f"pair {pair.id}: 'about' has columns of the format's own: {', '.join(taken)}")
    row: dict[str, object] = {
        "prompt": _plain(pair.prompt),
        "chosen": _plain(pair.chosen.written),
        "rejected": _plain(pair.rejected.written),
        "id": pair.id,
    }
    if pair.prompt_ids is not None:
        row["tokens"] = {
            "prompt": pair.prompt_ids,
            **dict(_tokens("chosen", pair.chosen)),
            **dict(_tokens("rejected", pair.rejected)),
        }
    try:
        text = json.dumps(row | dict(pair.about), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError) as error:
        raise RecordError(f"pair {pair.id} cannot be written as JSON: {error}") from error
    return text.encode("utf-8", "replace") + b"\n"


def _plain(written: Written) -> str | list[dict[str, object]]:
    return written if isinstance(written, str) else [dict(message) for message in written]


def _tokens(name: str, completion: Completion) -> Iterator[tuple[str, object]]:
    yield name, completion.ids
    yield f"{name}_mask", completion.mask


BAD = 5
"""Broken lines that are reported in full."""
SUGGESTED = 10_000
"""Most ids that an unknown one is compared with, as more take seconds."""


class _Named(msgspec.Struct):
    """The id of a line."""

    id: str


@dataclass(slots=True)
class Head:
    """The first trajectories of a file. bad: errors of lines before the last of them. more: lines after."""

    trajectories: list[Trajectory] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    more: int = 0


def head(path: Path, limit: int) -> Head:
    """Read the first `limit` trajectories (0: all). Raises RecordError if the file cannot be read, is a folder, or
    begins with BAD broken lines."""
    found = Head()
    lines = _lines(path)
    for number, line in lines:
        if limit and len(found.trajectories) == limit:
            found.more = 1 + sum(1 for _ in lines)
            break
        try:
            found.trajectories.append(read_line(line, f"{path}, line {number}"))
        except RecordError as error:
            found.bad.append(str(error))
            if len(found.bad) == BAD and not found.trajectories:
                errors = "\n".join(found.bad)
                raise RecordError(
                    f"{path} is not a file of trajectories: none of its first {BAD} lines is one\n{errors}"
                ) from None
    return found


def find(path: Path, wanted: str) -> Trajectory:
    """Find a trajectory by id, or by a unique prefix. Only lines that may match are decoded in full.

    Raises RecordError if no id matches, with the nearest one, or several do, or a line before it is broken.
    """
    beginning: list[bytes] = []
    ids: list[str] = []
    for number, line in _lines(path):
        try:
            id = _id_of(line, f"{path}, line {number}")
        except RecordError:
            if not beginning:
                raise
            continue  # such as a last line that was cut off
        ids.append(id)
        if id == wanted:
            return read_line(line, f"{path}, line {number}")
        if id.startswith(wanted):
            beginning.append(line)
    if len(beginning) == 1:
        return read_line(beginning[0], f"{path}")
    if beginning:
        some = [id for id in ids if id.startswith(wanted)]
        shown = f"{', '.join(some[:4])}{', …' if len(some) > 4 else ''}"
        raise RecordError(f"{path}: {len(some)} ids begin with '{wanted}': {shown}")
    hint = nearest(wanted, ids[:SUGGESTED])
    raise RecordError(f"{path}: no trajectory '{wanted}'{hint}; `retcon show {path}` lists all")


def contains_id(path: Path, id: str) -> bool:
    """Whether a trajectory of the file has this exact id. Raises RecordError at a broken line before it."""
    return any(_id_of(line, f"{path}, line {number}") == id for number, line in _lines(path))


def all_ids(path: Path) -> Iterator[str]:
    """Yield the ids of a file's trajectories; skip broken lines. Raises RecordError if the file cannot be read."""
    for number, line in _lines(path):
        with suppress(RecordError):
            yield _id_of(line, f"{path}, line {number}")


def find_first(path: Path, is_it: Callable[[Trajectory], bool], *, having: bytes) -> Trajectory | None:
    """Return the first trajectory that `is_it` accepts; only lines that contain `having` are decoded."""
    for number, line in _lines(path):
        if having in line and is_it(found := read_line(line, f"{path}, line {number}")):
            return found
    return None


def _id_of(line: bytes, where: str) -> str:
    try:
        return msgspec.json.decode(line, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return read_line(line, where).id  # raises the specific error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not empty, with their numbers."""
    check_not_folder(path)
    number = 0
    try:
        with open_lines(path) as file:
            for number, line in enumerate(file, 1):
                if not line.isspace():
                    yield number, line
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist{nearest_path(path)}") from None
    except read_errors() as error:
        raise RecordError(f"{path}, line {number + 1}: the file cannot be read further: {error}") from error
