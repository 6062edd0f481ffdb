"""Trajectory files: JSON Lines, one trajectory a line, plain or compressed: written by the name's `.gz` or `.zst`, read
by what their first bytes say."""

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
from retcon.store.whole import alone_on, explained, refuse_special, whole_file

BEGINNING = b'{"id":'
"""Of every line that is written here."""


def write(path: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Write a whole file, atomically: it is there in full or, on any error, as it was before. Returns the lines.

    Raises StorageError where the file cannot be written (a full disk), RecordError for a number that is not finite,
    MissingExtra for zstd without its package.
    """
    return write_lines(path, chain.from_iterable(map(lines_of, trajectories)))


def write_lines(path: str | Path, lines: Iterable[bytes]) -> int:
    """As `write`, of lines that end in a line end."""
    path = Path(path)
    refuse_special(path)
    count = 0
    with whole_file(path) as file, _compressing(file, path) as out:
        for line in lines:
            out.write(line)
            count += 1
    return count


class Unfinished(RecordError):
    """A last line that was cut off, of a trajectory as far as it goes."""


class Appender:
    """Adds trajectories to a plain file, one `add` at a time, as `LineAppender` does; use it in a `with`.

    Raises RecordError where the file cannot be written.
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
    """The trajectories of a file, one at a time, with their children (see `gathered`); empty lines are ignored.

    Raises RecordError, which begins `FILE, line N:`, at a line that is no trajectory. With `on_bad` such a line is
    passed to it as that error, and reading goes on with the next one. A file that cannot be opened always raises.
    """
    return gathered(_read_each(Path(path), on_bad))


def gathered(nodes: Iterable[Trajectory]) -> Iterator[Trajectory]:
    """Give trajectories the children that stand before them; one whose parent does not come stays by itself."""
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
    refuse_folder(path)
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
    """The lines of a trajectory and its descendants; see `line_of`."""
    return map(line_of, trajectory.tree)


def line_of(trajectory: Trajectory) -> bytes:
    """One line of a file, its line end included, without children. Raises RecordError for a number that is not
    finite."""
    if trajectory.children:
        trajectory = replace(trajectory, children=())
    try:
        line = msgspec.json.encode(trajectory)
        if b"null" not in line and b'"extra":' not in line:  # numbers that are not finite; unknown fields
            return line + b"\n"
    except (UnicodeEncodeError, TypeError, msgspec.MsgspecError):
        pass  # a lone surrogate, or a value that JSON does not have
    value = to_dict(trajectory)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError) as error:
        raise RecordError(f"trajectory {trajectory.id} cannot be written as JSON: {error}") from error
    # Lone surrogates, which a tool's output may hold, are no text: '?' rather than a trajectory that is lost.
    return text.encode("utf-8", "replace") + b"\n"


def read_line(line: bytes, where: str) -> Trajectory:
    """The trajectory of one line. where: the file and line, which an error begins with. Raises RecordError, Unfinished
    where no more is wrong with it than that its end is not there."""
    try:
        return from_dict(msgspec.json.decode(line), where)
    except RecursionError:
        raise RecordError(f"{where}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if line.endswith(b"\n"):
            raise RecordError(f"{where}: not JSON: {error}") from error
        kind = Unfinished if line.startswith(BEGINNING[: len(line)]) else RecordError
        raise kind(f"{where}: cut off in the middle (was its writer stopped?): not JSON: {error}") from error


def refuse_folder(path: Path) -> None:
    """Raises RecordError where a folder is named in place of a file of it: says which there are, audits first, and no
    metrics of a run."""
    if path.is_dir():
        found = (p for p in path.rglob("*.jsonl*") if p.name != "metrics.jsonl")
        inside = sorted((".audit." not in p.name, str(p.relative_to(path))) for p in found)
        names = [name for _, name in inside[:4]]
        there = f": it holds {', '.join(names)}{', …' if len(inside) > 4 else ''}" if inside else ""
        raise RecordError(f"{path} is a folder; name a file of trajectories{there}")


def open_lines(path: Path) -> IO[bytes]:
    """The bytes of a file, gzip and zstd undone; of one that stands compressed only, those of that one. Raises
    MissingExtra for zstd without its package."""
    if not path.exists():
        packed = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
        path = next((file for file in packed if file.is_file()), path)
    return cast(IO[bytes], decompressed(path.open("rb"), str(path)))


def _compressing(file: IO[bytes], path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    return compressed(file, path.name) if path.suffix in SUFFIXES else contextlib.nullcontext(file)


@contextmanager
def adding(path: Path, flag: str, id: str) -> Iterator[Callable[[Trajectory], str]]:
    """What adds a trajectory to the file, as `id`, or `id-2`, `id-3`, … where it has that already; returns which. What
    is left of a line that was cut off is removed then, and a compressed file written anew. No other process adds to
    the file meanwhile; one that was not there is made, and goes where nothing is added.

    flag: what the user named it by, for messages. Raises at once, before there is anything to lose: RecordError where
    the file is no regular one, holds something else than trajectories or is compressed and not named so,
    CheckpointError where another process adds to it, StorageError where it cannot be written, MissingExtra for zstd
    without its package.
    """
    refuse_special(path, flag)
    new = not os.path.lexists(path)
    with alone_on(path):
        try:
            free = _free(path, flag, id)
            if path.suffix in SUFFIXES:
                with explained(path), tempfile.TemporaryFile(dir=path.parent):
                    pass
            elif is_compressed(path):
                raise RecordError(f"{flag} {path}: it is compressed, which its name does not say: name it .gz or .zst, "
                                  "or choose another")  # fmt: skip

            def add(trajectory: Trajectory) -> str:
                _add(path, _renamed(trajectory, trajectory.id, free))
                return free

            yield add
        finally:
            if new and path.is_file() and not path.stat().st_size:
                path.unlink()


def _renamed(trajectory: Trajectory, old: str, new: str) -> Trajectory:
    """The tree of a root under another id, which the ids of its descendants begin with."""
    parent = trajectory.parent
    return replace(
        trajectory,
        id=new + trajectory.id.removeprefix(old),
        parent=parent and replace(parent, trajectory=new + parent.trajectory.removeprefix(old)),
        children=tuple(_renamed(child, old, new) for child in trajectory.children),
    )


def _free(path: Path, flag: str, id: str) -> str:
    def foreign(error: RecordError) -> None:
        if not isinstance(error, Unfinished):
            said = f"{flag} {path}: it is no file of trajectories, and is left as it is ({error})"
            raise RecordError(said) from error

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
    """Write a whole file, atomically (see `write_lines`), compressed where its name ends in `.gz`. Returns the count.

    Raises RecordError where the file cannot be written, or a pair is no JSON.
    """
    return write_lines(path, map(pair_line, pairs))


def pair_line(pair: Pair) -> bytes:
    """One line of the file, its line end included. Raises RecordError for a pair that is no JSON."""
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
"""Broken lines that are told in full."""
SUGGESTED = 10_000
"""Ids that a wrong one is compared with at most: more take seconds."""


class _Named(msgspec.Struct):
    """What of a line says whose it is."""

    id: str


@dataclass(slots=True)
class Head:
    """The first trajectories of a file. bad: what is wrong with lines before the last of them. more: lines after."""

    trajectories: list[Trajectory] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    more: int = 0


def head(path: Path, limit: int) -> Head:
    """The first `limit` trajectories (0: all). Raises RecordError where the file cannot be read, is a folder, or begins
    with BAD broken lines and nothing else, so that it is no file of trajectories."""
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
                told = "\n".join(found.bad)
                raise RecordError(
                    f"{path} is not a file of trajectories: none of its first {BAD} lines is one\n{told}"
                ) from None
    return found


def find(path: Path, wanted: str) -> Trajectory:
    """The trajectory of that id, else the only one whose id begins so. Only lines that may be it are read in full.

    Raises RecordError where there is none, with the nearest id, or more than one, or a line before it that is broken.
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
        told = f"{', '.join(some[:4])}{', …' if len(some) > 4 else ''}"
        raise RecordError(f"{path}: {len(some)} ids begin with '{wanted}': {told}")
    hint = nearest(wanted, ids[:SUGGESTED])
    raise RecordError(f"{path}: no trajectory '{wanted}'{hint}; `retcon show {path}` lists all")


def holds(path: Path, id: str) -> bool:
    """Whether a trajectory of the file has this very id. Raises RecordError at a line before it that is broken."""
    return any(_id_of(line, f"{path}, line {number}") == id for number, line in _lines(path))


def all_ids(path: Path) -> Iterator[str]:
    """Of all trajectories of a file; lines that are none are passed over. Raises RecordError where it cannot be
    read."""
    for number, line in _lines(path):
        with suppress(RecordError):
            yield _id_of(line, f"{path}, line {number}")


def first(path: Path, is_it: Callable[[Trajectory], bool], *, having: bytes) -> Trajectory | None:
    """The first trajectory that `is_it` says yes to; only lines with `having` in them are read in full."""
    for number, line in _lines(path):
        if having in line and is_it(found := read_line(line, f"{path}, line {number}")):
            return found
    return None


def _id_of(line: bytes, where: str) -> str:
    try:
        return msgspec.json.decode(line, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return read_line(line, where).id  # says what is wrong


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, with their numbers."""
    refuse_folder(path)
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
