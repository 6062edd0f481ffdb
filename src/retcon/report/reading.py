"""Any run folder, read for a report: a training of any kind, finished or not, or an evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from retcon.core.errors import CheckpointError, nearest
from retcon.core.types import Trajectory
from retcon.evaluate.audit import ABOUT
from retcon.evaluate.result import Result, read_result
from retcon.report.choose import repaired, showcase
from retcon.runs.manifest import NAME
from retcon.runs.metrics import Metrics, read_metrics
from retcon.store.compression import read_once
from retcon.store.jsonl import head
from retcon.store.lines import SUFFIX

LOOK = 400
"""Trajectories of a file that are chosen from."""
FINAL = "final"
FEW = 6
"""Runs that a message names at most."""


@dataclass(frozen=True, slots=True)
class Viewed:
    """kind: sft, dpo, rl or eval. recipe: as run.json has it. steps: of the whole run, None of an evaluation.
    metrics: of the steps so far. finished: whether there is, or was, a final model, or a whole result. places: what it
    computed on. result: of its evaluation, if there is one. stages: (name, first step, last step) of each. start: the
    model that it began with or measures; empty where nothing tells."""

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


def view(folder: Path, name: str) -> Viewed:
    """The run or evaluation in `folder`. Raises CheckpointError where there is neither, with what is near; RecordError
    for metrics that cannot be read."""
    if (folder / NAME).is_file():
        return _training(folder, name)
    if (folder / ABOUT).is_file():
        raise CheckpointError(f"{folder} is an audit, whose tables are in {folder / 'table.md'}")
    begun = list(folder.glob(f"trajectories-*{SUFFIX}"))
    if (folder / "result.json").is_file():
        result = read_result(folder / "result.json")
        whole = result.whole and all(_is_whole(path, result) for path in begun)
        return Viewed(folder, name, "eval", result.recipe, None, (), whole, "", (), result, start=result.checkpoint)
    if begun:
        raise CheckpointError(f"{folder} is an evaluation that has only begun: no figure of it is known yet")
    if not folder.is_dir():
        siblings = [p.name for p in folder.parent.iterdir() if p.is_dir()] if folder.parent.is_dir() else []
        raise CheckpointError(f"no run {folder}{nearest(folder.name, siblings)}")
    # Those of a comparison lie below their arms.
    inside = sorted(str(p.parent.relative_to(folder)) for at in ("*", "*/*") for p in folder.glob(f"{at}/{NAME}"))
    more = ", …" * (len(inside) > FEW)
    hint = f"; there are runs in it: {', '.join(inside[:FEW])}{more}" if inside else ""
    raise CheckpointError(f"{folder} has neither {NAME} nor result.json: it is not a run folder{hint}")


def _is_whole(begun: Path, result: Result) -> bool:
    """Whether the setting of a partial file is measured: its process was killed before it could remove the file."""
    file = begun.with_name(begun.name.removesuffix(SUFFIX))
    return file.is_file() and file.stem.removeprefix("trajectories-") in result.settings


def _training(folder: Path, name: str) -> Viewed:
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
    return Viewed(
        folder, name, kind, recipe, steps, metrics, _is_over(folder, result), str(about.get("version", "")),
        about.get("places", ()), result, stages, start,
    )  # fmt: skip


def _is_over(run: Path, result: Result | None) -> bool:
    """Whether there is a final model, or was one: that was measured, and may have been removed since."""
    return (run / FINAL).is_dir() or (result is not None and Path(result.checkpoint).name == FINAL)


def _stages(tables: Sequence[Mapping[str, Any]], steps: int) -> list[tuple[str, int, int]]:
    ends = list(accumulate(int(table["steps"]) for table in tables))
    ends = [*ends[:-1], steps] if ends else []  # the last one may have left its number out
    return [
        (str(table["name"]), before + 1, last) for table, before, last in zip(tables, [0, *ends], ends, strict=False)
    ]


def named(folders: Sequence[Path]) -> dict[str, Path]:
    """Names by which runs are told apart: their folders', with as many folders above as that takes."""
    absolute = [folder.resolve() for folder in folders]
    for depth in range(1, max((len(p.parts) for p in absolute), default=1) + 1):
        names = ["/".join(p.parts[-depth:]) for p in absolute]
        if len(set(names)) == len(names):
            return dict(zip(names, folders, strict=True))
    raise CheckpointError("the same run is named twice")


def some_trajectories(run: Viewed) -> tuple[Trajectory | None, list[Trajectory]]:
    """One that was repaired, if there is one, and one each that passed and that failed, the shortest; of the last step
    that was kept, or of the evaluation."""
    files = sorted(read_once((run.folder / "trajectories").glob("step-*.jsonl*")), reverse=True)
    files = files or sorted(p for p in read_once(run.folder.glob("trajectories-*.jsonl*")) if p.suffix != SUFFIX)
    first: Trajectory | None = None
    others: list[Trajectory] = []
    for file in files:
        read = head(file, LOOK).trajectories
        if not others:
            for good in (True, False):
                alike = [t for t in read if t.reward is not None and (t.reward > 0) == good and t.turns]
                others += sorted(alike, key=lambda t: (not t.raw_calls, len(t.text)))[:1]
        first = first or showcase(read) or next(filter(repaired, read), None)
        if first is not None or (others and not _repairs(run)):  # all files of a long run take minutes
            break
    return first, others


def _repairs(run: Viewed) -> bool:
    """Whether something in its trajectories may have been repaired, for all that its recipe says."""
    own = [part["repair"] for part in (run.recipe, *run.recipe.get("stages", ())) if "repair" in part]
    return run.kind != "rl" or not own or any(repair.get("kind") != "none" for repair in own)
