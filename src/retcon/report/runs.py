"""What a report is made of: the runs of each arm, read from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from retcon.core.errors import RecordError
from retcon.evaluate.result import Result, read_result

Metrics = dict[str, float | None]
"""One step of training, as a line of metrics.jsonl: name to value, None where there is none."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training run and its evaluation. metrics: a step each, in order. demonstrations: that it learnt from."""

    folder: Path
    seed: int
    metrics: Sequence[Metrics]
    result: Result
    demonstrations: int | None = None

    @property
    def rollouts(self) -> float | None:
        """Rollouts that were made for this run: by the policy, or by the teacher as demonstrations."""
        made = self.total("rollouts")
        return self.demonstrations if made is None else made

    def last(self, name: str) -> float | None:
        """The value after the last step, such as of costs, which metrics tell as they stand."""
        return self.metrics[-1].get(name) if self.metrics else None

    def total(self, name: str) -> float | None:
        """The sum over steps, None where a step does not have it."""
        values = [m.get(name) for m in self.metrics]
        known = [v for v in values if v is not None]
        return sum(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A cold start and the arms that were trained from it, each with one run a seed. seconds: wall, of everything."""

    cold_start: Run
    arms: dict[str, list[Run]]
    seconds: float

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for runs in self.arms.values() for run in runs})


def read_run(folder: Path, seed: int) -> Run:
    """The run in `folder`, its evaluation in `folder/eval`.

    Raises RecordError for a broken line of metrics (named), CheckpointError where the evaluation is absent or broken.
    """
    return Run(folder, seed, read_metrics(folder / "metrics.jsonl"), read_result(folder / "eval" / "result.json"))


def read_metrics(path: Path) -> list[Metrics]:
    """The numbers of each line of a metrics file; what is no number is left out. Raises RecordError by line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RecordError(f"{path}: the metrics cannot be read: {error}") from error
    steps: list[Metrics] = []
    for number, line in enumerate(lines, start=1):
        try:
            step = msgspec.json.decode(line, type=dict[str, object])
        except msgspec.DecodeError as error:
            raise RecordError(f"{path}, line {number}: not a step's metrics: {error}") from error
        steps.append({k: v for k, v in step.items() if v is None or (isinstance(v, int | float))})
    return steps
