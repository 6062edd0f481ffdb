"""The folder of a training run: what it is, its metrics, its trajectories, its checkpoints.

run.json                     the run manifest
metrics.jsonl                a line per step
trajectories/step-000010.jsonl
checkpoints/step-000020/     a Hugging Face folder, with the optimiser's state beside the weights
final/                       a Hugging Face folder, once the run is over
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.errors import RecordError
from retcon.core.types import Trajectory
from retcon.runs.manifest import (
    NAME,
    RunKind,
    check_place,
    manifest,
    note_curve,
    note_harnesses,
    note_inputs,
    note_place,
)
from retcon.runs.metrics import Metrics, read_metrics
from retcon.store import jsonl
from retcon.store.whole import alone, explained, remove_partial, synced, write_json, write_whole

LOG = logging.getLogger(__name__)
STEP = re.compile(r"step-(\d+)(\.jsonl(\.gz|\.zst)?)?")


class RunFolder:
    """One run's folder, opened for going on. Use `open_run`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.final = root / "final"
        self.metrics = root / "metrics.jsonl"

    @property
    def finished(self) -> bool:
        return self.final.is_dir()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Within, no other process trains here; what a killed one left half written is removed. Raises CheckpointError
        where one does."""
        with alone(self.root):
            for folder in (self.root, self.root / "checkpoints", self.root / "trajectories"):
                remove_partial(folder)
            yield

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint after `step` steps lies, or will."""
        return self.root / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(step, folder) of every checkpoint, newest first."""
        return _steps(self.root / "checkpoints")

    def note_place(self, line: str) -> None:
        """Keep in the manifest what the run computes on from here, where that is not what it computed on before."""
        note_place(self.root, line)

    def note_harnesses(self, code: Mapping[str, str]) -> None:
        """Keep in the manifest what the run's harnesses are, a hash by import path, and tell of one that is another
        than before. The run goes on: what broke in it may have been mended."""
        for path in note_harnesses(self.root, code):
            LOG.warning(
                "%s: rollout.harness = %s is other code than the run went on with so far: rollouts are made by the new "
                "one from here on (docs/training/harnesses.md)", self.root, path,
            )  # fmt: skip

    def note_curve(self, recipe: Recipe) -> None:
        """Keep in the manifest what a curve's points are measured by, where this is the first of a run that began
        without one."""
        note_curve(self.root, recipe)

    def log(self, line: Mapping[str, float | None]) -> None:
        """Append a step's metrics, handed to the system at once. Raises StorageError where the disk says no."""
        # A number that is not finite is no JSON: the run could not be read any more, nor go on.
        known = {name: None if value is None or not math.isfinite(value) else value for name, value in line.items()}
        with explained(self.metrics), self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(known) + "\n")

    def keep_metrics(self) -> None:
        """Put the metrics on the disk: of a checkpoint that a power cut leaves, those of its steps must be there."""
        if self.metrics.is_file():
            with explained(self.metrics):
                synced(self.metrics)

    def read_metrics(self) -> list[Metrics]:
        """The lines of metrics.jsonl, up to one that was cut off as it was written. Raises RecordError by line, also
        for one of no step."""
        lines = read_metrics(self.metrics, cut_off=True)
        for number, line in enumerate(lines, start=1):
            if line.get("step") is None:
                raise RecordError(f"{self.metrics}, line {number}: not a step's metrics: it says no step")
        return lines

    def trajectories(self, step: int) -> Path:
        """Where the rollouts of `step` lie, or will."""
        return self.root / "trajectories" / f"step-{step:06d}.jsonl"

    def keep_trajectories(self, step: int, trajectories: Iterable[Trajectory]) -> None:
        """Write the rollouts of `step`, those that were not trained on among them."""
        with explained(self.root / "trajectories"):
            (self.root / "trajectories").mkdir(exist_ok=True)
        jsonl.write(self.trajectories(step), trajectories)

    def cut(self, step: int) -> None:
        """Forget metrics and trajectories of steps after `step`, which will be taken again."""
        kept = [line for line in self.read_metrics() if (line["step"] or 0) <= step]
        write_whole(self.metrics, "".join(json.dumps(line) + "\n" for line in kept))
        for later, path in _steps(self.root / "trajectories"):
            if later > step:
                path.unlink()


def open_run(
    root: Path,
    *,
    kind: RunKind,
    recipe: Recipe,
    inputs: Mapping[str, str],
    tasks: str | None = None,
    start: str = "",
) -> RunFolder:
    """The run in `root`, new where the folder is absent or empty.

    inputs: name to fingerprint of what the run starts from. tasks, start: name of the task set, and the model to start
    from, where they need not be the recipe's. Raises CheckpointError where `root` holds something else: another format,
    kind, recipe or input, or no run at all; nothing in it is touched then; and where another process begins one there.
    """
    root = Path(root)
    about = manifest(kind, recipe, inputs, tasks, start)
    if not check_place(root, recipe, about):
        with alone(root):
            if not check_place(root, recipe, about):  # or another process has begun one here meanwhile
                write_json(root / NAME, about)
    note_inputs(root, inputs)
    return RunFolder(root)


def check_run(root: Path, *, kind: RunKind, recipe: Recipe) -> None:
    """Raises what `open_run` will, but for other inputs: to be called before work that makes those. The folder is made
    where it is absent, since only that tells whether it can be."""
    check_place(Path(root), recipe, manifest(kind, recipe, {}, None))


def _steps(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [(int(m[1]), p) for p in folder.iterdir() if (m := STEP.fullmatch(p.name))]
    return sorted(found, reverse=True)
