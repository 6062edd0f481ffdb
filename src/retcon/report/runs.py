"""Runs and evaluations, read from their folders."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from retcon.core.errors import CheckpointError, RecordError, nearest
from retcon.core.types import Trajectory, is_repaired
from retcon.evaluate.result import Result, read_result
from retcon.runs.folder import NAME
from retcon.runs.metrics import Metrics, read_metrics
from retcon.store import jsonl
from retcon.store.compression import drop_duplicates
from retcon.store.jsonl import head
from retcon.store.lines import SUFFIX


@dataclass(frozen=True, slots=True)
class Run:
    """One training run and its evaluation. metrics: in step order. demonstrations: how many it learnt from."""

    folder: Path
    seed: int
    metrics: Sequence[Metrics]
    result: Result
    demonstrations: int | None = None

    @property
    def rollouts(self) -> float | None:
        """Rollouts by the policy, or by the teacher as demonstrations."""
        made = self.total("rollouts")
        return self.demonstrations if made is None else made

    def last(self, name: str) -> float | None:
        """Return the value after the last step, as for cumulative costs."""
        return self.metrics[-1].get(name) if self.metrics else None

    def total(self, name: str) -> float | None:
        """Return the sum over steps, None where a step lacks it."""
        values = [m.get(name) for m in self.metrics]
        known = [v for v in values if v is not None]
        return sum(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms trained from one cold start, one run a seed each. seconds: wall time in all."""

    cold_start: Run
    arms: dict[str, list[Run]]
    seconds: float

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for runs in self.arms.values() for run in runs})


def run_folder(out: Path, arm: str, seed: int) -> Path:
    """Return the folder of an arm's run in a comparison."""
    return out / arm / f"seed-{seed}"


def read_run(folder: Path, seed: int) -> Run:
    """Read the run in `folder` with its evaluation in `folder/eval`.

    Raises RecordError for missing metrics or a broken line (named), CheckpointError where the evaluation is absent or
    broken.
    """
    file = folder / "metrics.jsonl"
    metrics = read_metrics(file) if file.exists() else []
    if not metrics:
        raise RecordError(f"{file} has no step of a finished run: remove {folder} to train it again")
    return Run(folder, seed, metrics, read_result(folder / "eval" / "result.json"))


def showcase(trajectories: Iterable[Trajectory]) -> Trajectory | None:
    """Return the shortest rewarded trajectory with only shallow repairs, or None."""

    def shallow(trajectory: Trajectory) -> bool:
        decisions = [t.repair.decision for t in trajectory.turns if t.repair is not None]
        return (trajectory.reward or 0) > 0 and bool(decisions) and set(decisions) == {"shallow"}

    return min(filter(shallow, trajectories), key=_sampled_length, default=None)


def shortest_repaired(trajectories: Iterable[Trajectory]) -> Trajectory | None:
    """Return the repaired trajectory with the least sampled text, right or wrong."""
    return min(filter(is_repaired, trajectories), key=_sampled_length, default=None)


def _sampled_length(trajectory: Trajectory) -> int:
    return sum(len(attempt.text) for turn in trajectory.turns for attempt in turn.raw())


def showcase_in(folder: Path) -> tuple[Trajectory, Path] | None:
    """Return the latest showcase of a run folder, with its file.

    Raises RecordError for a file that cannot be read.
    """
    for file in _latest_first(folder):
        found = showcase(jsonl.read(file))
        if found is not None:
            return found, file
    return None


def _latest_first(folder: Path) -> Iterator[Path]:
    yield from sorted(drop_duplicates((folder / "trajectories").glob("step-*.jsonl*")), reverse=True)


LOOK = 400
"""Trajectories to choose from, per file."""
FINAL = "final"
FEW = 6
"""Most runs that a message names."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run or evaluation. kind: sft, dpo, rl or eval. recipe: from run.json. steps: planned, None for an evaluation.
    metrics: of the steps so far. finished: whether there is, or was, a final model or a whole result. places: where it
    ran. result: of its evaluation, if any. stages: (name, first step, last step) of each. start: the model that it
    began with or measures, "" if unknown."""

    folder: Path
    name: str
    kind: str
    recipe: dict[str, Any]
    steps: int | None
    metrics: Sequence[Metrics]
    finished: bool
    version: str
    places: Sequence[str] = ()
    result: Result | None = None
    stages: Sequence[tuple[str, int, int]] = ()
    start: str = ""

    def last(self, metric: str) -> float | None:
        return self.metrics[-1].get(metric) if self.metrics else None


def view(folder: Path, name: str) -> RunSummary:
    """Read the run or evaluation in `folder`. Raises CheckpointError, naming similar folders, where there is neither;
    RecordError for metrics that cannot be read."""
    if (folder / NAME).is_file():
        return _training(folder, name)
    from retcon.evaluate.audit import ABOUT

    if (folder / ABOUT).is_file():
        raise CheckpointError(f"{folder} is an audit, whose tables are in {folder / 'table.md'}")
    begun = list(folder.glob(f"trajectories-*{SUFFIX}"))
    if (folder / "result.json").is_file():
        result = read_result(folder / "result.json")
        whole = result.whole and all(_is_whole(path, result) for path in begun)
        return RunSummary(folder, name, "eval", result.recipe, None, (), whole, "", (), result, start=result.checkpoint)
    if begun:
        raise CheckpointError(f"{folder} is an evaluation that has only begun: it has no figures yet")
    if not folder.is_dir():
        siblings = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
        raise CheckpointError(f"no run {folder}{nearest(folder.name, siblings)}")
    # A comparison's runs lie below their arms.
    inside = sorted(str(p.parent.relative_to(folder)) for at in ("*", "*/*") for p in folder.glob(f"{at}/{NAME}"))
    more = ", …" * (len(inside) > FEW)
    hint = f"; there are runs in it: {', '.join(inside[:FEW])}{more}" if inside else ""
    raise CheckpointError(f"{folder} has neither {NAME} nor result.json: it is not a run folder{hint}")


def _is_whole(begun: Path, result: Result) -> bool:
    """Whether the setting of a partial file is measured: its process was killed before it could remove the file."""
    file = begun.with_name(begun.name.removesuffix(SUFFIX))
    return file.is_file() and file.stem.removeprefix("trajectories-") in result.settings


def _training(folder: Path, name: str) -> RunSummary:
    try:
        about = json.loads((folder / NAME).read_text(encoding="utf-8"))
        kind, recipe = str(about["kind"]), dict(about["recipe"])
        start = str(recipe["model"]["path"] if kind == "sft" else about.get("start", ""))
        steps = int(recipe[kind]["steps"])  # the section that a kind of run is named after
        stages = _stages(recipe.get("stages", ()), steps) if kind == "rl" else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / NAME} cannot be read ({error!r}): is it of another version?") from error
    metrics = read_metrics(folder / "metrics.jsonl", cut_off=True)
    evaluated = folder / "eval" / "result.json"
    result = read_result(evaluated) if evaluated.is_file() else None
    return RunSummary(
        folder, name, kind, recipe, steps, metrics, _is_over(folder, result), str(about.get("version", "")),
        about.get("places", ()), result, stages, start,
    )  # fmt: skip


def _is_over(run: Path, result: Result | None) -> bool:
    """Whether there is a final model, or was one: it was measured, and may have been removed since."""
    return (run / FINAL).is_dir() or (result is not None and Path(result.checkpoint).name == FINAL)


def _stages(tables: Sequence[Mapping[str, Any]], steps: int) -> list[tuple[str, int, int]]:
    ends = list(accumulate(int(table["steps"]) for table in tables))
    ends = [*ends[:-1], steps] if ends else []  # the last stage may leave its number out
    return [
        (str(table["name"]), before + 1, last) for table, before, last in zip(tables, [0, *ends], ends, strict=False)
    ]


def unique_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the runs by unique names: folder names with as many parents as needed."""
    absolute = [folder.resolve() for folder in folders]
    for depth in range(1, max((len(p.parts) for p in absolute), default=1) + 1):
        names = ["/".join(p.parts[-depth:]) for p in absolute]
        if len(set(names)) == len(names):
            return dict(zip(names, folders, strict=True))
    raise CheckpointError("the same run is given twice: name each run once")


def some_trajectories(run: RunSummary) -> tuple[Trajectory | None, list[Trajectory]]:
    """Return a repaired trajectory, and the shortest passed and failed ones. They come from the last stored steps, or
    from the evaluation."""
    files = sorted(drop_duplicates((run.folder / "trajectories").glob("step-*.jsonl*")), reverse=True)
    files = files or sorted(p for p in drop_duplicates(run.folder.glob("trajectories-*.jsonl*")) if p.suffix != SUFFIX)
    first: Trajectory | None = None
    others: list[Trajectory] = []
    for file in files:
        read = head(file, LOOK).trajectories
        if not others:
            for good in (True, False):
                alike = [t for t in read if t.reward is not None and (t.reward > 0) == good and t.turns]
                others += sorted(alike, key=lambda t: (not t.raw_calls, len(t.text)))[:1]
        first = first or showcase(read) or next(filter(is_repaired, read), None)
        if first is not None or (others and not _repairs(run)):  # all files of a long run take minutes
            break
    return first, others


def _repairs(run: RunSummary) -> bool:
    """Whether its recipe allows repairs, so that trajectories may hold some."""
    own = [part["repair"] for part in (run.recipe, *run.recipe.get("stages", ())) if "repair" in part]
    return run.kind != "rl" or not own or any(repair.get("kind") != "none" for repair in own)


def recipe_sections(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest's recipe in a form that can be loaded again.

    A manifest holds the tasks' name in `task.name`. That key belongs to data recipes and is redundant where it is the
    default; a name that was chosen is in the task ids, and so in every seed.
    """
    from retcon.tasks.data.rows import short_name

    task = recipe.get("task")
    if not isinstance(task, dict):
        return dict(recipe)
    if task.get("kind") == "file" and task.get("name") != short_name(str(task.get("path", ""))):
        return dict(recipe)
    return {**recipe, "task": {key: value for key, value in task.items() if key != "name"}}
