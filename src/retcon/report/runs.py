"""What a report is made of: the runs of each arm, read from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retcon.core.errors import RecordError
from retcon.evaluate.result import Result, read_result
from retcon.runs.metrics import Metrics, read_metrics


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

    Raises RecordError for a broken line of metrics (named) and for none, CheckpointError where the evaluation is absent
    or broken.
    """
    file = folder / "metrics.jsonl"
    metrics = read_metrics(file) if file.exists() else []
    if not metrics:
        raise RecordError(f"{file} tells no step of a run that is over: remove {folder}, and it is trained again")
    return Run(folder, seed, metrics, read_result(folder / "eval" / "result.json"))
