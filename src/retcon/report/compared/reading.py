"""What a comparison left behind, read from its folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retcon.evaluate.result import Problem, Result, Setting, read_result
from retcon.report.runs import Run, read_run

PLAIN, REPAIRED, FAULTS = "eval", "eval-repaired", "eval-faults"
"""Folders of a run's evaluations: purification off; failed turns repaired as they happen; tools that have hiccups."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One arm's run of one seed. results: by condition (PLAIN, REPAIRED, FAULTS), of those that were measured."""

    run: Run
    results: dict[str, Result]


def run_folder(out: Path, arm: str, seed: int) -> Path:
    """Where a comparison in `out` keeps an arm's run of a seed."""
    return out / arm / f"seed-{seed}"


def read_compared(out: Path, arm: str, seed: int) -> ComparedRun:
    """Raises RecordError for a broken line of metrics, CheckpointError where the evaluation is absent or broken."""
    folder = run_folder(out, arm, seed)
    run = read_run(folder, seed)
    others = {
        name: read_result(file) for name in (REPAIRED, FAULTS) if (file := folder / name / "result.json").is_file()
    }
    return ComparedRun(run, {PLAIN: run.result, **others})


def per_problem(
    arms: Sequence[Sequence[ComparedRun]], condition: str, setting: str, value: Callable[[Problem], float | None]
) -> list[np.ndarray] | None:
    """`value` of each problem in each run of each arm, (S, N) an arm, the same problems in all; None where a run was
    not measured so, or no run has any. A problem that has no value in some run, such as for rollouts that faults took,
    is left out: N may be 0."""
    measured = [[_setting(run, condition, setting) for run in runs] for runs in arms]
    if any(found is None for runs in measured for found in runs):
        return None
    values = [
        [{p.task: v for p in found.problems if p.samples and (v := value(p)) is not None} for found in runs if found]
        for runs in measured
    ]
    if not any(run for runs in values for run in runs):
        return None
    tasks = sorted(set.intersection(*(set(run) for runs in values for run in runs)))
    return [np.array([[run[task] for task in tasks] for run in runs]) for runs in values]


def evaluated_on(arms: Sequence[Sequence[ComparedRun]], condition: str, setting: str) -> int:
    """How many problems the runs were measured on, those that have no value among them."""
    settings = (_setting(run, condition, setting) for runs in arms for run in runs)
    return len({problem.task for found in settings if found for problem in found.problems})


def cpu_of_a_rollout(run: ComparedRun, condition: str, setting: str) -> float | None:
    """Milliseconds of CPU time that the evaluation took for each rollout that no fault ended; None where there is
    none."""
    found = _setting(run, condition, setting)
    count = sum(problem.samples for problem in found.problems) if found else 0
    return 1000 * found.cpu_s / count if found and count else None


def _setting(run: ComparedRun, condition: str, setting: str) -> Setting | None:
    result = run.results.get(condition)
    return None if result is None else result.settings.get(setting)
