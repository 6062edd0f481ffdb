"""The figures of a comparison: each arm's, and how each differs from the first arm's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retcon.evaluate.result import PASS_AT, Problem
from retcon.evaluate.statistics import Interval, Paired, exactly, over_runs, over_seeds, paired, pass_at_k
from retcon.report.compared.curves import area, at_tokens, learnt, steps_to
from retcon.report.compared.reading import (
    FAULTS,
    PLAIN,
    REPAIRED,
    ComparedRun,
    cpu_of_a_rollout,
    evaluated_on,
    per_problem,
)

SEEDS_OF_A_FINDING = 5


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of evaluations. value: of a problem, None where it has none. better: the sign of what is better.
    bounded: whether it lies between 0 and 1."""

    name: str
    label: str
    digits: int
    better: int
    value: Callable[[Problem], float | None]
    bounded: bool = False


def _pass_at(k: int) -> Measure:
    def value(problem: Problem) -> float | None:
        return pass_at_k(problem.samples, problem.passed, k) if problem.samples >= k else None

    return Measure(f"pass{k}", f"pass@{k}", 3, 1, value, bounded=True)


MEASURES = (
    *map(_pass_at, PASS_AT),
    Measure("first_try_failures", "first tries failed", 3, -1, lambda p: p.first_try_failures, bounded=True),
    Measure("failed_calls", "failed calls", 2, -1, lambda p: p.failed_calls),
    Measure("tokens", "tokens", 1, -1, lambda p: p.tokens),
)


@dataclass(frozen=True, slots=True)
class Condition:
    """How something was measured. suffix: of its figures' names."""

    title: str
    folder: str
    setting: str
    suffix: str


CONDITIONS = (
    Condition("purification off", PLAIN, "t1", "_t1"),
    Condition("off, second top-p", PLAIN, "top_p", ""),
    Condition("purification on", REPAIRED, "t1", "_t1_repaired"),
    Condition("off, faulty tools", FAULTS, "t1", "_t1_faults"),
)


@dataclass(frozen=True, slots=True)
class Over:
    """counted: problems that have a value in every run, over which a figure is; of: all that were measured."""

    counted: int
    of: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a comparison. section: what it is of. arms: each arm's estimate, None where there is none.
    differences: from the first arm, of the others, where they can be paired. problems: None where the figures are of no
    problems."""

    section: str
    name: str
    label: str
    digits: int
    better: int
    arms: dict[str, Interval | None]
    differences: dict[str, Paired]
    problems: Over | None = None


Arms = Mapping[str, Sequence[ComparedRun]]
"""Each arm's runs, one a seed, in the same order in all arms; the first arm is what the others are compared with."""


def figures(arms: Arms) -> list[Figure]:
    """All of them, in the order of the table; those that nothing was measured of are left out."""
    return [*_evaluated(arms), *_learning(arms), *_costs(arms)]


def _evaluated(arms: Arms) -> list[Figure]:
    found: list[Figure] = []
    names = list(arms)
    for condition in CONDITIONS:
        for measure in MEASURES:
            values = per_problem(list(arms.values()), condition.folder, condition.setting, measure.value)
            if values is None:
                continue
            most = 1.0 if measure.bounded else math.inf
            count = values[0].shape[1]
            of_arm, apart = zip(names, values, strict=True), zip(names[1:], values[1:], strict=True)
            found.append(
                Figure(
                    condition.title,
                    measure.name + condition.suffix,
                    measure.label,
                    measure.digits,
                    measure.better,
                    {arm: over_runs(v, floor=0.0, ceiling=most) if count else None for arm, v in of_arm},
                    {arm: paired(v, values[0], most=most) for arm, v in apart if count},
                    Over(count, evaluated_on(list(arms.values()), condition.folder, condition.setting)),
                )
            )
        times = {arm: [cpu_of_a_rollout(run, condition.folder, condition.setting) for run in arms[arm]] for arm in arms}
        if all(time is not None for own in times.values() for time in own):
            found.append(by_seed(condition.title, f"cpu_ms{condition.suffix}", "CPU ms", 0, 0, times))
    return found


def _learning(arms: Arms) -> list[Figure]:
    """The learning curve: its mean height, its height at the tokens that the thriftiest arm of the seed had sampled in
    the end, and how many steps an arm took to where the first arm ended, of those seeds that came there."""
    metric = learnt(run.run for runs in arms.values() for run in runs)
    areas = {arm: [area(run.run, metric) for run in runs] for arm, runs in arms.items()}
    first = next(iter(arms))
    steps = {
        arm: [steps_to(run.run, goal.run, metric) for run, goal in zip(runs, arms[first], strict=True)]
        for arm, runs in arms.items()
        if None not in areas[arm]
    }
    title = "learning curve"
    rows = [
        by_seed(title, "curve_area", "mean height", 3, 1, areas, most=1.0),
        by_seed(title, "pass1_equal_tokens", "at equal tokens", 3, 1, _at_equal_tokens(arms), most=1.0),
    ]
    if first in steps:
        rows += _reached(title, {arm: steps.get(arm) for arm in arms})
    return [row for row in rows if any(row.arms.values())]


def _at_equal_tokens(arms: Arms) -> dict[str, list[float | None]]:
    totals = [[run.run.total("sampled_tokens") or 0.0 for run in runs] for runs in arms.values()]
    least = [min(of_seed) for of_seed in zip(*totals, strict=True)]
    return {arm: [at_tokens(run.run, n) for run, n in zip(runs, least, strict=True)] for arm, runs in arms.items()}


def _costs(arms: Arms) -> list[Figure]:
    title = "training"
    told: list[tuple[str, str, Callable[[ComparedRun], float | None]]] = [
        ("steps", "steps", lambda run: float(len(run.run.metrics))),
        ("rollouts", "rollouts made", lambda run: run.run.total("rollouts")),
        ("trained_rollouts", "rollouts trained on", lambda run: run.run.total("kept")),
        ("sampled_tokens", "tokens sampled", lambda run: run.run.total("sampled_tokens")),
        ("cpu_s", "CPU seconds", lambda run: run.run.last("cpu_s")),
        ("wall_s", "wall seconds", lambda run: run.run.last("wall_s")),
        ("alarms", "alarms (drift)", _alarms),
    ]
    rows = [
        by_seed(title, name, label, 0, 0, {arm: [value(run) for run in runs] for arm, runs in arms.items()})
        for name, label, value in told
    ]
    return [row for row in rows if row.name != "alarms" or any(one and one.mean for one in row.arms.values())]


def _alarms(run: ComparedRun) -> float | None:
    """Times that the alarm began."""
    told = [step.get("first_try_alarm") for step in run.run.metrics]
    if all(one is None for one in told):
        return None
    return float(sum(bool(now) and not before for before, now in zip([None, *told], told, strict=False)))


def by_seed(
    title: str, name: str, label: str, digits: int, better: int, values: Mapping[str, Sequence[float | None]],
    *, most: float = math.inf, least: float = 0.0,
) -> Figure:  # fmt: skip
    """A figure from `least` to `most`, of which each run has one: Student's t over seeds; of one seed the value alone.
    Differences are paired by seed."""
    known = {arm: [v for v in own if v is not None] for arm, own in values.items()}
    first, *others = known
    whole = {arm for arm, own in values.items() if len(known[arm]) == len(own)}
    differences: dict[str, Paired] = {}
    for arm in others:
        if {first, arm} <= whole:
            apart = [a - b for a, b in zip(known[arm], known[first], strict=True)]
            differences[arm] = Paired(_interval(apart, least - most, most - least), tuple(apart), better=0, worse=0)
    intervals = {arm: _interval(own, least, most) if arm in whole and own else None for arm, own in known.items()}
    return Figure(title, name, label, digits, better, intervals, differences)


def _reached(title: str, steps: Mapping[str, Sequence[float | None] | None]) -> list[Figure]:
    """Steps to the first arm's final score, the mean of the seeds that reached it; and how many did. steps: None of an
    arm without curves."""
    known = {arm: None if own is None else [v for v in own if v is not None] for arm, own in steps.items()}
    means = {arm: exactly(statistics.fmean(own)) if own else None for arm, own in known.items()}
    counts = {arm: None if own is None else exactly(float(len(own))) for arm, own in known.items()}
    return [
        Figure(title, "steps_to_first", "steps to first arm's end", 0, -1, means, {}),
        Figure(title, "reached_first", "  seeds that came there", 0, 1, counts, {}),
    ]


def _interval(values: Sequence[float], floor: float, ceiling: float) -> Interval:
    return exactly(values[0]) if len(values) == 1 else over_seeds(values, floor=floor, ceiling=ceiling)
