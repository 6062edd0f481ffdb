"""The book that a folder of targets keeps: what made it, and how long that took over all sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from rich.console import Console

from retcon.cli.common.board import board_for
from retcon.cli.common.jobs import Job, run_jobs
from retcon.cli.common.targets import Target, refuse_apart, refuse_unready, to_make, warn_of_rates
from retcon.core.errors import CheckpointError
from retcon.runs.comparing import as_now, differing, flat
from retcon.runs.manifest import refuse_unloadable
from retcon.store.alone import LOCK, alone
from retcon.store.whole import explained, write_whole

FORMAT = 1


class Book(msgspec.Struct):
    """What a folder was made with. recipes: of each job. seconds: wall, of all sessions."""

    format: int = FORMAT
    seconds: float = 0.0
    recipes: dict[str, dict[str, dict[str, object]]] = {}


B = TypeVar("B", bound=Book)


class Ledger(Generic[B]):
    """The book of one folder, and the clock of this session."""

    def __init__(self, path: Path, targets: Sequence[Target], kind: type[B]) -> None:
        """Opens the book in the file `path`. Raises CheckpointError where the folder was made by other recipes, or
        another version, or is none that models can be loaded from."""
        refuse_unloadable(path.parent)
        self._path = path
        self.book = read_book(path, kind)
        self._since: float | None = None
        for target in targets:
            # [track] may differ between sessions.
            recipe = flat(target.recipe.model_dump(mode="json", exclude={"track"}))
            then = as_now(self.book.recipes.get(target.job.name, recipe), target.recipe)
            _check_same(path.parent, then, recipe)
            self.book.recipes[target.job.name] = recipe

    @property
    def seconds(self) -> float:
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self.book.seconds + running

    def begin(self) -> None:
        """Work starts: the clock runs, and the folder is from now on made by these recipes."""
        self._since = time.monotonic()
        self.save()

    def end(self) -> float:
        """Work is over: the clock stands still. Returns the seconds as they are kept."""
        self.book.seconds, self._since = round(self.seconds, 2), None
        self.save()
        return self.book.seconds

    def save(self) -> None:
        """Raises StorageError where the book cannot be written."""
        book = msgspec.structs.replace(self.book, seconds=round(self.seconds, 2))
        with explained(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(book), indent=1))


def make_targets(targets: Sequence[Target], ledger: Ledger[B], *, at_once: int, console: Console, out: Path) -> float:
    """Does what is left (`to_make`), as `run_jobs`; wall seconds of this and all earlier sessions. Warns as
    `warn_of_rates`. Raises CheckpointError where another process is at it, and as `refuse_apart`, NotReady as
    `refuse_unready`."""
    left, there = to_make(targets), refuse_apart(targets)
    todo = [target.job for target in left]

    def ended(_: Job) -> None:
        ledger.save()
        refuse_apart(targets)

    if not todo:
        return ledger.seconds
    with ExitStack() as held:
        if begun := (out / LOCK).exists():
            held.enter_context(alone(out))
        with console.status("checking that everything can be trained here"):  # which takes some seconds
            refuse_unready(left, there)
        warn_of_rates(left)
        if not begun:  # what is refused makes no folder
            held.enter_context(alone(out))
        console.print(
            f"{len(todo)} of {len(targets)} jobs to do, {at_once} at once; everything goes to {out}", highlight=False
        )
        ledger.begin()
        try:
            with board_for(console, todo, at_once) as board:
                run_jobs(todo, at_once=at_once, board=board, on_end=ended)
        finally:
            seconds = ledger.end()
    return seconds


def refuse_foreign(out: Path, file: str, what: str, ours: Sequence[str] = ()) -> None:
    """Raises CheckpointError where `out` is no folder, or holds something and not the book `file`. what: such a folder
    holds. ours: names of what may be there before the book."""
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file: choose another --out")
    foreign = out.is_dir() and any(not p.name.startswith(".") and p.name not in ours for p in out.iterdir())
    if foreign and not (out / file).is_file():
        raise CheckpointError(f"{out} is not empty and has no {file}: it holds no {what}; choose another --out")


def read_book(path: Path, kind: type[B]) -> B:
    """A new book where there is none. Raises CheckpointError for one that cannot be read."""
    try:
        book = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return kind()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; choose another --out") from error
    if book.format != FORMAT:
        raise CheckpointError(f"{path}: format {book.format}, this version reads {FORMAT}; choose another --out")
    return book


def _check_same(out: Path, old: dict[str, dict[str, object]], new: dict[str, dict[str, object]]) -> None:
    changed = list(differing(old, new))
    if changed:
        raise CheckpointError(
            f"{out} was made with another recipe: {'; '.join(changed)}. "
            "Use the old values to continue, or choose another --out"
        )
