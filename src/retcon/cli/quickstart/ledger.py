"""What a quickstart folder was made with, and how long it took over all its sessions."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from retcon.cli.quickstart.plan import Plan, Stage
from retcon.core.errors import CheckpointError
from retcon.evaluate.result import read_result
from retcon.evaluate.runner import settings_of
from retcon.runs.comparing import differing
from retcon.store.whole import explained, write_whole

FORMAT = 1


class Book(msgspec.Struct):
    """quickstart.json. recipes: of each job. seconds: wall, of all sessions. hours, fitted: see `Plan`."""

    format: int = FORMAT
    seconds: float = 0.0
    recipes: dict[str, dict[str, dict[str, object]]] = {}
    hours: float | None = None
    fitted: tuple[str, ...] | None = None


class Ledger:
    """The book of one folder, and the clock of this session."""

    def __init__(self, plan: Plan) -> None:
        """Opens the book. Raises CheckpointError where the folder was made by other recipes, or another version."""
        self._path = plan.out / "quickstart.json"
        self._book = _read(self._path)
        self._since: float | None = None
        for stage in plan.stages:
            recipe = stage.recipe.model_dump(mode="json")
            _check_same(plan.out, self._book.recipes.get(stage.job.name, recipe), recipe)
            self._book.recipes[stage.job.name] = recipe
        if plan.fitted is not None:
            self._book.hours, self._book.fitted = plan.hours, plan.fitted

    @property
    def seconds(self) -> float:
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self._book.seconds + running

    def begin(self) -> None:
        """Work starts: the clock runs, and the folder is from now on made by these recipes."""
        self._since = time.monotonic()
        self.save()

    def end(self) -> float:
        """Work is over: the clock stands still. Returns the seconds as they are kept."""
        self._book.seconds, self._since = round(self.seconds, 2), None
        self.save()
        return self._book.seconds

    def save(self) -> None:
        """Raises StorageError where the book cannot be written."""
        book = msgspec.structs.replace(self._book, seconds=round(self.seconds, 2))
        with explained(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, msgspec.json.format(msgspec.json.encode(book), indent=1))


def fitted_before(out: Path, hours: float | None) -> tuple[str, ...] | None:
    """The overrides that fitted the steps of the folder `out` to so many hours when it was begun; None where it was not
    begun, or with other hours. Raises CheckpointError for a book that cannot be read."""
    book = _read(out / "quickstart.json")
    return book.fitted if book.hours == hours else None


def finished(stage: Stage) -> bool:
    """Whether what the stage makes is there, whole."""
    if stage.makes.suffix != ".json":
        return stage.makes.is_dir()
    return stage.makes.is_file() and read_result(stage.makes).settings.keys() == settings_of(stage.recipe).keys()


def _read(path: Path) -> Book:
    try:
        book = msgspec.json.decode(path.read_bytes(), type=Book)
    except FileNotFoundError:
        return Book()
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; choose another --out") from error
    if book.format != FORMAT:
        raise CheckpointError(f"{path}: format {book.format}, this version reads {FORMAT}; choose another --out")
    return book


def _check_same(out: Path, old: dict[str, dict[str, object]], new: dict[str, dict[str, object]]) -> None:
    changed = list(differing(old, new))
    if changed:
        raise CheckpointError(
            f"{out} was made with another recipe: {'; '.join(changed)}. "
            "Use the old values to go on, or choose another --out"
        )
