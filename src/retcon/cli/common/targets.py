"""The targets of a longer work, as of `make`: each is made by a job that is done once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec
from rich.console import Console

from retcon.build import as_evaluated
from retcon.cli.arguments import READS, names_demos, of_sections
from retcon.cli.jobs import Job, board_for, run_jobs
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.config.stages import stages_of
from retcon.core.errors import CheckpointError, RetconError
from retcon.evaluate.result import read_result
from retcon.evaluate.runner import settings_of
from retcon.runs.manifest import NAME as RUN
from retcon.runs.manifest import PROBLEMS, WEIGHTS, RunKind, as_now, differing, flat, refuse_unloadable
from retcon.store.whole import LOCK, alone, explained, write_whole
from retcon.train.stages import refuse_rollouts, refuse_unlearnable

EVALUATION = "eval"
OF_A_SEED = ("run.seed=", "track.name=")
"""How overrides begin in which the runs of an arm differ."""


@dataclass(frozen=True, slots=True)
class Target:
    """A job, the recipe that it runs under, the file or folder that is there once it has finished, and the overrides
    that made its recipe. trains: as what kind of run, None for what is no training. start: the model that it trains,
    which need not be there yet: it is then of the configuration that its cold start, or else the recipe, names. given:
    the recipe of a training, as it was named."""

    job: Job
    recipe: Recipe
    makes: Path
    overrides: tuple[str, ...]
    trains: RunKind | None = None
    start: str = ""
    given: str = ""

    @property
    def finished(self) -> bool:
        """Whether what the job makes is there, whole."""
        if self.makes.suffix != ".json":
            return self.makes.is_dir()
        if not self.makes.is_file():
            return False
        return read_result(self.makes).settings.keys() == settings_of(self.recipe).keys()


def to_make(targets: Sequence[Target]) -> list[Target]:
    """Those that are not there, in their order, but for models that were removed once all that is made of them was
    there."""
    left: list[Target] = []
    wanted: set[str] = set()
    for target in reversed(targets):  # each stands before those that need it
        folder = str(target.makes.parent)  # others that wait for it ask it for its metrics alone, which stay
        waiting = (other.job for other in targets if target.job.name in other.job.needs)
        users = [job.name for job in waiting if folder in job.words]
        if (not users or not wanted.isdisjoint(users)) and not target.finished:
            wanted.add(target.job.name)
            left.append(target)
    return left[::-1]


def cold_start(out: Path, folder: Path, recipe: str, overrides: Sequence[str], *, name: str, demos: Path) -> Target:
    """Supervised training into `folder`, on demonstrations that it writes to `demos` unless they are there. out: where
    everything goes. recipe: a file, or the name of a shipped one. name: of the job."""
    settings, overrides = _settled(out, folder, recipe, overrides)
    own = of_sections(overrides, READS["sft"])
    made = () if names_demos(settings, own) else (f"demos.kind={settings.demos.kind}",)  # or it is refused
    words = ("sft", recipe, *own, *made, "--demonstrations", str(demos), "--out", str(folder))
    job = Job(name, words, _log(out, folder), threads=settings.run.threads)
    return Target(job, settings, folder / "final", tuple(overrides), "sft", settings.model.path)


def training(
    out: Path,
    folder: Path,
    recipe: str,
    overrides: Sequence[str],
    *,
    name: str,
    start: str,
    needs: Sequence[str],
    late: Callable[[], Sequence[str]] = tuple,
    text: str | None = None,
) -> Target:
    """Reinforcement learning into `folder`, from the model `start`; otherwise as `cold_start`. needs, late: of the
    job. text: of the recipe's file, where that is written before the job runs. Raises as `refuse_unlearnable`,
    `refuse_rollouts` and the engine's `refuse_training`, before the jobs that it needs have run."""
    settings, overrides = _settled(out, folder, recipe, overrides, text)
    if not (folder / "final").exists():
        settings.engine.refuse_training(settings)
        refuse_rollouts(settings)
    refuse_unlearnable(settings)
    words = ("train", recipe, *of_sections(overrides, READS["train"]), "--from", start, "--out", str(folder))
    job = Job(name, words, _log(out, folder), threads=settings.run.threads, needs=tuple(needs), late=late)
    return Target(job, settings, folder / "final", tuple(overrides), "rl", start, recipe)


def evaluation(
    out: Path,
    made: Target,
    recipe: str,
    overrides: Sequence[str],
    *,
    name: str = "",
    into: str = EVALUATION,
    text: str | None = None,
) -> Target:
    """The evaluation of what a training makes, in the folder `into` of its own; name: of the job, that of the training
    with `evaluation` by default; text: as of `training`. Raises as the task family's `refuse_rollouts`, before the
    training has run."""
    folder = made.makes.parent
    target = folder / into
    settings = load_recipe(recipe, overrides, text=text)
    if not (target / "result.json").exists():
        settings.task.refuse_rollouts(as_evaluated(settings))
    words = ("eval", str(folder), recipe, *overrides, "--out", str(target))
    job = Job(name or f"{made.job.name}, evaluation", words, _log(out, target), needs=(made.job.name,))
    return Target(job, settings, target / "result.json", tuple(overrides))


class NotReady(RetconError):
    """Trainings that could not begin: names them, their recipes, and what is in the way of each."""


Made = Mapping[tuple[str, str], tuple[str, Path]]
"""(what, of which) to its fingerprint and the run or result that it is of; `refuse_apart` says what."""


def refuse_apart(targets: Iterable[Target]) -> Made:
    """What the targets that are there were made of: the problems that results are of, by the sections that name them,
    and the model that trainings started from, by its name, where it is no cold start of theirs. A data file, say, may
    have changed between two sessions, which no recipe tells, and its problems keep their ids. Raises CheckpointError
    where two were made of different ones: they cannot be compared."""
    targets = list(targets)
    made, found = _cold_starts(targets), dict[tuple[str, str], tuple[str, Path]]()
    for target in targets:
        run = target.makes.parent
        if target.trains is None and target.makes.is_file():
            key, value, by = _problems(target), read_result(target.makes).inputs.get(PROBLEMS), target.makes
        elif target.trains == "rl" and target.start not in made and (run / RUN).is_file():
            key, value, by = (WEIGHTS, target.start), _started_from(run / RUN), run
        else:
            continue
        if value is None:  # of an earlier version, which did not say
            continue
        then, other = found.setdefault(key, (value, by))
        if then != value:
            raise CheckpointError(
                f"{other} and {by} are of different {key[0]}: what their recipes name has changed in between, and they "
                "cannot be compared. Remove the runs that are not to count, and the same command makes them again; or "
                "choose another --out"
            )
    return found


def _problems(target: Target) -> tuple[str, str]:
    """By what names them; the tools stand in prompts, of which `task.max_prompt_tokens` leaves out long ones."""
    recipe, about = target.recipe, target.recipe.evaluate
    tools = [*recipe.rollout.tools, recipe.sandbox.sessions]
    return PROBLEMS, json.dumps([recipe.task.model_dump(mode="json"), about.problems, about.seed, tools])


def _started_from(manifest: Path) -> str | None:
    """None also of one that cannot be read, which the run itself says."""
    try:
        return str(json.loads(manifest.read_bytes())["inputs"]["start"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def refuse_unready(targets: Sequence[Target], there: Made = MappingProxyType({})) -> None:
    """Raises NotReady for what a training would be refused for when its turn comes, which may be hours after its cold
    start began, and for one from another model, or to be measured on other problems, than what is there. Of runs that
    differ in their seed alone one is looked at, of those that have begun none; in a process of its own, so that no
    memory is kept, nor a GPU's. What one fails with otherwise is told beside that; where that is all, it is left to the
    runs to say so."""
    made, asked = _cold_starts(targets), dict[tuple[str, ...], tuple[object, ...]]()
    before: dict[str, list[tuple[str, str, str]]] = {}
    for target in targets:
        run = target.makes.parent
        if target.trains != "rl" or (run / RUN).exists() or (folder := _found(target, made)) is None:
            continue
        arm = (target.given, *(one for one in target.overrides if not one.startswith(OF_A_SEED)))
        name, itself = f"{target.job.name} ({target.given})", _located(target.start) is not None
        asked.setdefault(arm, (name, target.given, target.overrides, str(folder), itself, str(run)))
        keys = _problems(target), (WEIGHTS, target.start)
        before[name] = [(key[0], there[key][0], str(there[key][1])) for key in keys if key in there]
    if not asked:
        return
    done = subprocess.run(
        [sys.executable, "-m", "retcon.train.stages"],
        input=json.dumps([list(asked.values()), before]).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    if any(refused for _, _, refused in told):
        raise NotReady("; ".join(f"{name}: {why}" for name, why, _ in told))


def _cold_starts(targets: Iterable[Target]) -> dict[str, str]:
    """Folder to the model that is trained into it, of which what starts from the folder is."""
    return {str(target.makes.parent): target.recipe.model.path for target in targets if target.trains == "sft"}


def _found(target: Target, made: Mapping[str, str]) -> Path | None:
    """Of the model that is trained, or of one like it; None where neither is there, as its job will say. made: as of
    `_cold_starts`."""
    return _located(target.start) or _located(made.get(target.start, target.recipe.model.path))


def _located(path: str) -> Path | None:
    from retcon.models.locating import BASE, SCRATCH, locate  # it needs the [train] extra

    with suppress(CheckpointError):
        return BASE if path == SCRATCH else locate(path)
    return None


def warn_of_rates(targets: Sequence[Target]) -> None:
    """Warns once (RateWarning) of each learning rate that is far above what models of the size are trained with: what
    the jobs say of it stands in their logs."""
    from retcon.planning.needs import parameters_of, warn_of_rate

    made, sizes = _cold_starts(targets), dict[Path, int]()
    told: set[tuple[object, ...]] = set()
    for target in targets:
        if target.trains is None or (folder := _found(target, made)) is None:
            continue
        if folder not in sizes:
            sizes[folder] = parameters_of(folder)
        for stage in stages_of(target.recipe):
            about = (
                target.trains,
                getattr(stage.recipe, target.trains).lr,
                bool(stage.recipe.lora.rank),
                sizes[folder],
            )
            if about not in told:
                told.add(about)
                warn_of_rate(target.trains, stage.recipe, sizes[folder])


def _settled(
    out: Path, folder: Path, recipe: str, overrides: Sequence[str], text: str | None = None
) -> tuple[Recipe, Sequence[str]]:
    """The recipe, and the overrides that make it. Its trackers know the run by its place in `out`, where no name is
    given: the folders alone are called seed-1 in every arm."""
    settings = load_recipe(recipe, overrides, text=text)
    if settings.track.to and not settings.track.name:
        overrides = (*overrides, f"track.name={_named(out, folder)}")
        settings = load_recipe(recipe, overrides, text=text)
    return settings, overrides


def _named(out: Path, folder: Path) -> str:
    return "-".join(folder.relative_to(out).parts)


def _log(out: Path, folder: Path) -> Path:
    return out / "logs" / f"{_named(out, folder)}.log"


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
