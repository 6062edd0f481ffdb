"""Run an experiment: cold starts, trainings and evaluations, each made once by a `retcon` process.

`retcon quickstart`, `compare` and `reproduce` list the targets; the same command continues what was interrupted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from retcon.build import with_evaluation_repair
from retcon.cli.arguments import READS, names_demos, overrides_of
from retcon.cli.jobs import Job, display_jobs, run_jobs
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, stages_of
from retcon.core.errors import CheckpointError, RetconError
from retcon.evaluate.result import read_result
from retcon.runs.folder import NAME as RUN
from retcon.runs.folder import PROBLEMS, WEIGHTS, RunFolder, RunKind, as_now, differing, flat, refuse_unloadable
from retcon.store.whole import LOCK, lock_folder, storage_errors, write_whole
from retcon.train.settling import check_learnable, check_rollouts

EVALUATION = "eval"
SEED_KEYS = ("run.seed=", "track.name=")
"""Overrides in which the runs of one arm differ."""
FORMAT = 1
FLAGS = {"match": "--match", "faults": "--faults", "start": "--from"}
"""Fields of a record that every session must give alike, and their flags."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file or folder, and the job that makes it.

    Args:
        makes: `final` of a training, `result.json` of an evaluation.
        overrides: those that made `recipe`.
        trains: kind of training, None for an evaluation.
        start: model that is trained, possibly the folder of a cold start that is still to be made.
        given: recipe of a training as the user named it.
    """

    job: Job
    recipe: Recipe
    makes: Path
    overrides: tuple[str, ...]
    trains: RunKind | None = None
    start: str = ""
    given: str = ""

    @property
    def finished(self) -> bool:
        """Whether the whole result is there."""
        if self.makes.suffix != ".json":
            return self.makes.is_dir()
        from retcon.evaluate.runner import settings_of

        return self.makes.is_file() and read_result(self.makes).settings.keys() == settings_of(self.recipe).keys()


def cold_start(out: Path, folder: Path, recipe: str, overrides: Sequence[str], *, name: str, demos: Path) -> Target:
    """Supervised training into `folder` of the experiment `out`; writes `demos` unless the file exists."""
    settings, overrides = _name_run(out, folder, recipe, overrides)
    own = overrides_of(overrides, READS["sft"])
    kind = () if names_demos(settings, own) else (f"demos.kind={settings.demos.kind}",)  # `retcon sft` requires it
    words = ("sft", recipe, *own, *kind, "--demonstrations", str(demos), "--out", str(folder))
    shows = RunFolder(folder).trajectories(settings.sft.first_repair) if settings.sft.first_repair else None
    job = Job(name, words, _log(out, folder), threads=settings.run.threads, shows=shows)
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
    """Reinforcement learning into `folder` from the model `start`.

    needs, late: of the job. text: content of a recipe file that is written before the job runs. Raises RecipeError for
    what the training would refuse once its turn comes.
    """
    settings, overrides = _name_run(out, folder, recipe, overrides, text)
    if not (folder / "final").exists():
        settings.engine.check_training(settings)
        check_rollouts(settings)
    check_learnable(settings)
    words = ("train", recipe, *overrides_of(overrides, READS["train"]), "--from", start, "--out", str(folder))
    job = Job(name, words, _log(out, folder), threads=settings.run.threads, needs=tuple(needs), late=late)
    return Target(job, settings, folder / "final", tuple(overrides), "rl", start, recipe)


def evaluation(
    out: Path,
    trained: Target,
    recipe: str,
    overrides: Sequence[str],
    *,
    label: str,
    into: str = EVALUATION,
    text: str | None = None,
) -> Target:
    """Evaluation of a training's model, into a folder of its run. label: ends the job's name. text: see `training`."""
    folder = trained.makes.parent
    target = folder / into
    settings = load_recipe(recipe, overrides, text=text)
    if not (target / "result.json").exists():
        settings.task.check_rollouts(with_evaluation_repair(settings))
    words = ("eval", str(folder), recipe, *overrides, "--out", str(target))
    job = Job(f"{trained.job.name}, {label}", words, _log(out, target), needs=(trained.job.name,))
    return Target(job, settings, target / "result.json", tuple(overrides))


def _name_run(
    out: Path, folder: Path, recipe: str, overrides: Sequence[str], text: str | None = None
) -> tuple[Recipe, Sequence[str]]:
    """Read a recipe; trackers get the run's place in `out` as its name, as all arms have a folder `seed-1`."""
    settings = load_recipe(recipe, overrides, text=text)
    if settings.track.to and not settings.track.name:
        overrides = (*overrides, f"track.name={_dashed(out, folder)}")
        settings = load_recipe(recipe, overrides, text=text)
    return settings, overrides


def _dashed(out: Path, folder: Path) -> str:
    return "-".join(folder.relative_to(out).parts)


def _log(out: Path, folder: Path) -> Path:
    return out / "logs" / f"{_dashed(out, folder)}.log"


class Record(msgspec.Struct, omit_defaults=True):
    """The JSON file of an experiment's folder.

    Args:
        seconds: wall time of all sessions. cpu_s: of each job that ended, by its name.
        recipes: recipe of each job, by the job's name.
        arms: of a comparison, name to recipe, the baseline first.
        hours, fitted: of a quickstart, the time its steps were fitted to and the overrides that do so.
    """

    format: int
    seconds: float = 0.0
    cpu_s: dict[str, float] = {}
    recipes: dict[str, dict[str, dict[str, object]]] = {}
    arms: dict[str, str] = {}
    match: str = ""
    faults: float = 0.0
    start: str | None = None
    hours: float | None = None
    fitted: tuple[str, ...] | None = None


def read_record(file: Path) -> Record:
    """Read an experiment's record, a new one where there is no file. Raises CheckpointError."""
    try:
        record = msgspec.json.decode(file.read_bytes(), type=Record)
    except (FileNotFoundError, NotADirectoryError):
        return Record(FORMAT)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; choose another --out") from error
    if record.format != FORMAT:
        raise CheckpointError(f"{file}: format {record.format}, this version reads {FORMAT}; choose another --out")
    return record


@dataclass(slots=True)
class Experiment:
    """Targets in one folder, in the order in which they are made.

    Args:
        file: name of its record. what: such as `quickstart`, for messages.
        settings: fields of the record that this command sets.
        cold: (start, seed) to the cold start.
        trained: (arm, seed) to the training and its evaluations.
    """

    out: Path
    file: str
    what: str
    seeds: Sequence[int] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    cold: dict[tuple[str, int], Target] = field(default_factory=dict)
    trained: dict[tuple[str, int], tuple[Target, ...]] = field(default_factory=dict)
    record: Record = field(default_factory=lambda: Record(FORMAT))

    def add_cold_start(self, start: str, seed: int, target: Target) -> Target:
        self.cold[start, seed] = target
        self.targets.append(target)
        return target

    def add_run(self, arm: str, seed: int, *targets: Target) -> None:
        self.trained[arm, seed] = targets
        self.targets += targets

    def open(self, ours: Sequence[str] = ()) -> Experiment:
        """Read the record; check that the folder is this experiment's or new.

        Arms and seeds may be added. ours: names that may stand in the folder without a record. Raises CheckpointError.
        """
        out = self.out
        if out.exists() and not out.is_dir():
            raise CheckpointError(f"{out} is a file: choose another --out")
        others = out.is_dir() and any(not p.name.startswith(".") and p.name not in ours for p in out.iterdir())
        if others and not (out / self.file).is_file():
            raise CheckpointError(
                f"{out} is not empty and has no {self.file}: it holds no {self.what}; choose another --out"
            )
        refuse_unloadable(out)
        record = read_record(out / self.file)
        arms = list(record.arms)
        # Compared by name, as a recipe's path has several spellings; its content is compared below.
        if list(self.settings.get("arms", ()))[: len(arms)] != arms:
            raise CheckpointError(
                f"{out} compares {', '.join(record.arms.values())}: name these first, in that order, to continue or "
                "to add others; or choose another --out"
            )
        for name, value in self.settings.items():
            old = getattr(record, name)
            if record.recipes and name in FLAGS and old != value:
                raise CheckpointError(f"{out} was made with {FLAGS[name]} {old}, not {value}: choose another --out")
            setattr(record, name, value)
        for target in self.targets:
            recipe = flat(target.recipe.model_dump(mode="json", exclude={"track"}))  # trackers may change
            then = as_now(record.recipes.get(target.job.name, recipe), target.recipe)
            if changed := list(differing(then, recipe)):
                raise CheckpointError(
                    f"{out} was made with another recipe: {'; '.join(changed)}. "
                    "Use the old values to continue, or choose another --out"
                )
            record.recipes[target.job.name] = recipe
        self.record = record
        return self

    def save(self) -> None:
        """Write the record. Raises StorageError."""
        with storage_errors(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        write_whole(self.out / self.file, msgspec.json.format(msgspec.json.encode(self.record), indent=1))

    def run(self, *, at_once: int, console: Console, targets: Sequence[Target] | None = None) -> float:
        """Make what is missing; return the wall seconds of this and earlier sessions.

        targets: all of the experiment unless given. Raises NotReady before any work, JobFailed, CheckpointError where
        another command is at work in the folder or results do not belong together.
        """
        targets = self.targets if targets is None else targets
        todo, made = pending(targets), check_same_inputs(targets)
        if not todo:
            return self.record.seconds
        jobs = [target.job for target in todo]
        with ExitStack() as held:
            if begun := (self.out / LOCK).exists():
                held.enter_context(lock_folder(self.out))
            checking = "checking that everything can be trained here"
            if not console.is_terminal:
                console.print(checking)
            with console.status(checking):
                check_trainable(todo, made)
            warn_of_rates(todo)
            if not begun:  # a refused experiment leaves no folder
                held.enter_context(lock_folder(self.out))
            console.print(
                f"{len(jobs)} of {len(targets)} jobs to do, {at_once} at once; everything goes to {self.out}",
                highlight=False,
            )
            earlier, began = self.record.seconds, time.monotonic()

            def save() -> None:
                self.record.seconds = round(earlier + time.monotonic() - began, 2)
                self.save()

            def ended(job: Job) -> None:
                self.record.cpu_s[job.name] = job.cpu_s
                save()
                check_same_inputs(targets)

            save()
            try:
                with display_jobs(console, jobs, at_once) as board:
                    run_jobs(jobs, at_once=at_once, board=board, on_end=ended)
            finally:
                save()
        return self.record.seconds


def pending(targets: Sequence[Target]) -> list[Target]:
    """The missing targets, in order; a model that was removed counts only while an unfinished target needs it."""
    left: list[Target] = []
    wanted: set[str] = set()
    for target in reversed(targets):  # each stands before those that need it
        folder = str(target.makes.parent)  # jobs that do not name the folder need its metrics alone, which stay
        users = [t.job.name for t in targets if target.job.name in t.job.needs and folder in t.job.words]
        if (not users or not wanted.isdisjoint(users)) and not target.finished:
            wanted.add(target.job.name)
            left.append(target)
    return left[::-1]


class NotReady(RetconError):
    """Trainings cannot begin: the message names them, their recipes and each obstacle."""


Inputs = Mapping[tuple[str, str], tuple[str, Path]]
"""(kind, name) of an input to its fingerprint and the run or result that has it."""


def check_same_inputs(targets: Iterable[Target]) -> Inputs:
    """Compare the fingerprints of problems and start models over all results; return them.

    A data file may have changed between two sessions, which no recipe shows. Raises CheckpointError.
    """
    targets = list(targets)
    made, found = _cold_starts(targets), dict[tuple[str, str], tuple[str, Path]]()
    for target in targets:
        run = target.makes.parent
        if target.trains is None and target.makes.is_file():
            key, value, by = _problems(target), read_result(target.makes).inputs.get(PROBLEMS), target.makes
        elif target.trains == "rl" and target.start not in made and (run / RUN).is_file():
            key, value, by = (WEIGHTS, target.start), _start_fingerprint(run / RUN), run
        else:
            continue
        if value is None:  # written by an earlier version
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
    """Key of an evaluation's problems; tools are part of prompts, whose length `task.max_prompt_tokens` limits."""
    recipe, about = target.recipe, target.recipe.evaluate
    tools = [*recipe.rollout.tools, recipe.sandbox.sessions]
    return PROBLEMS, json.dumps([recipe.task.model_dump(mode="json"), about.problems, about.seed, tools])


def _start_fingerprint(manifest: Path) -> str | None:
    """None also for a broken manifest, which its run reports."""
    try:
        return str(json.loads(manifest.read_bytes())["inputs"]["start"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def check_trainable(targets: Sequence[Target], there: Inputs = MappingProxyType({})) -> None:
    """Check in another process that each arm's training could begin.

    there: inputs of earlier runs, which new ones must share. Errors of the user's own code are left to the run itself.
    Raises NotReady.
    """
    made, asked = _cold_starts(targets), dict[tuple[str, ...], tuple[object, ...]]()
    before: dict[str, list[tuple[str, str, str]]] = {}
    for target in targets:
        run = target.makes.parent
        if target.trains != "rl" or (run / RUN).exists() or (folder := _model_like(target, made)) is None:
            continue
        arm = (target.given, *(one for one in target.overrides if not one.startswith(SEED_KEYS)))
        name, itself = f"{target.job.name} ({target.given})", _find_model(target.start) is not None
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
    reasons = [json.loads(line) for line in done.stdout.splitlines()]
    if any(refused for _, _, refused in reasons):
        raise NotReady("; ".join(f"{name}: {why}" for name, why, _ in reasons))


def _cold_starts(targets: Iterable[Target]) -> dict[str, str]:
    """Folder of each cold start to the model that it trains."""
    return {str(target.makes.parent): target.recipe.model.path for target in targets if target.trains == "sft"}


def _model_like(target: Target, made: Mapping[str, str]) -> Path | None:
    """Folder of the model that is trained, or that its cold start trains; None where neither exists."""
    return _find_model(target.start) or _find_model(made.get(target.start, target.recipe.model.path))


def _find_model(path: str) -> Path | None:
    from retcon.models.locating import BASE, SCRATCH, locate  # needs the [train] extra

    with suppress(CheckpointError):
        return BASE if path == SCRATCH else locate(path)
    return None


def warn_of_rates(targets: Sequence[Target]) -> None:
    """Warn once (RateWarning) of each learning rate too high for its model."""
    from retcon.planning.needs import count_stored_parameters, warn_of_rate

    made, sizes = _cold_starts(targets), dict[Path, int]()
    seen: set[tuple[object, ...]] = set()
    for target in targets:
        if target.trains is None or (folder := _model_like(target, made)) is None:
            continue
        if folder not in sizes:
            sizes[folder] = count_stored_parameters(folder)
        for stage in (stage.recipe for stage in stages_of(target.recipe)):
            key = (target.trains, getattr(stage, target.trains).lr, bool(stage.lora.rank), sizes[folder])
            if key not in seen:
                seen.add(key)
                warn_of_rate(target.trains, stage, sizes[folder])


def print_end(
    console: Console, out: Path, seconds: float, files: Mapping[str, str], commands: Sequence[str], note: str = ""
) -> None:
    """Print where results are, their caveats, and next commands. files: names to places in `out`."""
    console.print(f"{seconds / 60:.1f} minutes in all. Where everything is, in {out}:", highlight=False, soft_wrap=True)
    width = max(map(len, files)) + 1
    for name, place in files.items():
        console.print(Text.assemble("  ", (f"{name:<{width}}", "bold"), place), soft_wrap=True)
    if note:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    console.print("\nWhat to try next:", highlight=False)
    for line in commands:
        console.print(Text(f"  {line}"), soft_wrap=True)
