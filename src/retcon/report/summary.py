"""summary.json: every figure of a comparison as {mean, low, high}."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from retcon.evaluate.result import K, Setting
from retcon.evaluate.statistics import Interval, exactly, over_problems, over_seeds
from retcon.report.runs import Comparison, Run
from retcon.store.whole import write_whole

LAST_STEPS = 10
FEW = 4

Figures = dict[str, Interval | None]
"""Name of a figure to its estimate, None where it was not measured."""

ABOUT = {
    "pass1_t1": "pass@1 at T = 1, top-p 1; purification off, problems that no training saw",
    "pass4_t1": "unbiased pass@4, same setting; where problems have samples enough, pass8_t1 instead",
    "pass8_t1": "unbiased pass@8, same setting",
    "pass1": "pass@1 at T = 1 and the second setting's top-p (.6)",
    "pass8": "unbiased pass@8, same setting",
    "failed_calls_t1": "raw failed calls per trajectory at T = 1, top-p 1",
    "failed_calls": "raw failed calls per trajectory in the second setting",
    "tokens": "tokens sampled per trajectory at T = 1, top-p 1",
    "rollouts": "rollouts made for training; of the cold start, the teacher's demonstrations",
    "wall_s": "wall seconds of training; of the cold start, without writing the demonstrations",
    "cpu_s": "CPU seconds of training, tool calls included; of the cold start as above",
    "train_failed_calls_raw": f"failed calls per rollout as they happened, last {LAST_STEPS} steps of training",
    "train_failed_calls": f"failed calls per rollout as trained on (purified), last {LAST_STEPS} steps of training",
}
"""What each figure is. Intervals are 95 %: Student's t over seeds, or with one run a bootstrap over problems."""


def summarize(comparison: Comparison) -> dict[str, object]:
    """The whole summary, ready to be written as JSON."""
    return {
        "cold_start": figures([comparison.cold_start]),
        "arms": {arm: figures(runs) for arm, runs in comparison.arms.items()},
        "seeds": comparison.seeds,
        "seconds": round(comparison.seconds, 1),
        "about": ABOUT,
    }


def write_summary(path: Path, comparison: Comparison) -> None:
    """Writes summary.json. Raises StorageError where it cannot be written."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(summarize(comparison)), indent=1) + b"\n")


def figures(runs: Sequence[Run]) -> Figures:
    """The figures of one arm's runs, one a seed."""
    return {
        "pass1_t1": _evaluated(runs, "t1", lambda s: s.passes(1), ceiling=1.0),
        "pass4_t1": _evaluated(runs, "t1", _pass_at_few, ceiling=1.0),
        "pass8_t1": _evaluated(runs, "t1", lambda s: s.passes(K), ceiling=1.0),
        "pass1": _evaluated(runs, "top_p", lambda s: s.passes(1), ceiling=1.0),
        "pass8": _evaluated(runs, "top_p", lambda s: s.passes(K), ceiling=1.0),
        "failed_calls_t1": _evaluated(runs, "t1", lambda s: s.per_problem(lambda p: p.failed_calls)),
        "failed_calls": _evaluated(runs, "top_p", lambda s: s.per_problem(lambda p: p.failed_calls)),
        "tokens": _evaluated(runs, "t1", lambda s: s.per_problem(lambda p: p.tokens)),
        "rollouts": _measured(runs, lambda run: run.rollouts),
        "wall_s": _measured(runs, lambda run: run.last("wall_s")),
        "cpu_s": _measured(runs, lambda run: run.last("cpu_s")),
        "train_failed_calls_raw": _measured(runs, lambda run: _at_the_end(run, "raw_failures")),
        "train_failed_calls": _measured(runs, lambda run: _at_the_end(run, "failures")),
    }


def _pass_at_few(setting: Setting) -> list[float]:
    """pass@4 where no problem has samples enough for pass@8."""
    return [] if setting.passes(K) else setting.passes(FEW)


def _evaluated(
    runs: Sequence[Run], setting: str, values: Callable[[Setting], list[float]], *, ceiling: float = float("inf")
) -> Interval | None:
    """`values`: one a problem. One run: bootstrap over its problems; more: t over the runs' means."""
    if any(setting not in run.result.settings for run in runs):
        return None
    per_run = [values(run.result.settings[setting]) for run in runs]
    if not all(per_run):
        return None
    if len(per_run) == 1:
        return over_problems(per_run[0])
    return over_seeds([statistics.fmean(v) for v in per_run], floor=0.0, ceiling=ceiling)


def _measured(runs: Sequence[Run], value: Callable[[Run], float | None]) -> Interval | None:
    """`value`: one a run. One run: as it is; more: t over runs."""
    known = [v for run in runs if (v := value(run)) is not None]
    if not known or len(known) < len(runs):
        return None
    return exactly(known[0]) if len(known) == 1 else over_seeds(known, floor=0.0)


def _at_the_end(run: Run, name: str) -> float | None:
    """Mean over the last steps that have it."""
    values = [v for step in run.metrics[-LAST_STEPS:] if (v := step.get(name)) is not None]
    return statistics.fmean(values) if values else None
