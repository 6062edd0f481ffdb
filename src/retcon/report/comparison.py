"""Figures, tables and curves of a finished comparison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from retcon.evaluate.result import PASS_AT, Problem, Result, Setting, read_result
from retcon.evaluate.statistics import Interval, Paired, exactly, over_runs, over_seeds, paired, pass_at_k
from retcon.report.plots import CURVES, Curve, draw_curves, running_mean
from retcon.report.runs import Run, read_run, run_folder
from retcon.report.tables import Sheet, cell, number, to_csv
from retcon.store.whole import write_whole

if TYPE_CHECKING:
    import numpy as np

PLAIN, REPAIRED, FAULTS = "eval", "eval-repaired", "eval-faults"
"""Folders of a run's evaluations: purification off; failed turns repaired as they happen; tools that fail at times."""


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One arm's run of one seed. results: by condition (PLAIN, REPAIRED, FAULTS), of those measured."""

    run: Run
    results: dict[str, Result]


def read_arm_run(out: Path, arm: str, seed: int) -> ArmRun:
    """Read one arm's run. Raises RecordError for broken metrics, CheckpointError without a sound evaluation."""
    folder = run_folder(out, arm, seed)
    run = read_run(folder, seed)
    others = {
        name: read_result(file) for name in (REPAIRED, FAULTS) if (file := folder / name / "result.json").is_file()
    }
    return ArmRun(run, {PLAIN: run.result, **others})


def per_problem(
    arms: Sequence[Sequence[ArmRun]], condition: str, setting: str, value: Callable[[Problem], float | None]
) -> list[np.ndarray] | None:
    """Return `value` per problem and run, an (S, N) array an arm. None where a run lacks the setting or no run has any
    value. Problems without a value in some run, such as after faults, are left out of all: N may be 0."""
    import numpy as np

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


def evaluated_on(arms: Sequence[Sequence[ArmRun]], condition: str, setting: str) -> int:
    """Count the problems that the runs were measured on, valued or not."""
    settings = (_setting(run, condition, setting) for runs in arms for run in runs)
    return len({problem.task for found in settings if found for problem in found.problems})


def cpu_of_a_rollout(run: ArmRun, condition: str, setting: str) -> float | None:
    """Return the evaluation's CPU milliseconds per rollout. Rollouts that faults ended are not counted; None if none
    are left."""
    found = _setting(run, condition, setting)
    count = sum(problem.samples for problem in found.problems) if found else 0
    return 1000 * found.cpu_s / count if found and count else None


def _setting(run: ArmRun, condition: str, setting: str) -> Setting | None:
    result = run.results.get(condition)
    return None if result is None else result.settings.get(setting)


HELD_OUT = "eval_pass_rate"
"""Metric of the evaluations during training (`evaluate.every`)."""
IN_TRAINING = "pass_rate"

COMPARED = (
    Curve("held_out", HELD_OUT, "Held-out problems, purification off", "pass@1", top=1.0, smooth=False),
    Curve("held_out_by_tokens", HELD_OUT, "Held-out problems by what they cost", "pass@1", top=1.0, smooth=False,
          over="sampled_tokens"),
    Curve("held_out_first_tries", "eval_first_try_failure_rate", "First tries that fail, held-out problems",
          "share of first tries", smooth=False),
    Curve("first_tries", "first_try_failure_rate", "First tries that fail, in training", "share of first tries"),
    *CURVES,
)  # fmt: skip


def curve_metric(runs: Iterable[Run]) -> str:
    """Return the metric of the learning curves. Held-out problems if some run has two evaluations on them or more, else
    the pass rate of training's own rollouts, which repairs raise."""
    counts = (sum(step.get(HELD_OUT) is not None for step in run.metrics) for run in runs)
    return HELD_OUT if any(count > 1 for count in counts) else IN_TRAINING


def curve_of(run: Run, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and heights, both (T,), of a run's learning curve: evaluations, or training's running mean."""
    import numpy as np

    if metric != IN_TRAINING:
        points = [(step["step"] or 0, value) for step in run.metrics if (value := step.get(metric)) is not None]
        steps, heights = np.array(points, dtype=float).reshape(-1, 2).T
        return steps, heights
    rates = np.array([np.nan if (v := step.get(metric)) is None else v for step in run.metrics])
    steps = np.arange(1.0, len(rates) + 1)
    known = ~np.isnan(rates)
    return steps[known], running_mean(rates)[known]


def curve_area(run: Run, metric: str) -> float | None:
    """Return the curve's mean height by trapezoids; None for fewer than two points."""
    import numpy as np

    steps, heights = curve_of(run, metric)
    if len(steps) < 2:
        return None
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(steps)).sum() / (steps[-1] - steps[0]))


def at_tokens(run: Run, tokens: float) -> float | None:
    """Return the held-out pass rate after `tokens` sampled tokens. Interpolated between the evaluations around it; None
    outside of them."""
    import numpy as np

    places, heights, sampled = [], [], 0.0
    for step in run.metrics:
        sampled += step.get("sampled_tokens") or 0.0
        if (value := step.get(HELD_OUT)) is not None:
            places.append(sampled)
            heights.append(value)
    if not places or not places[0] <= tokens <= places[-1]:
        return None
    return float(np.interp(tokens, places, heights))


def steps_to(run: Run, goal: Run, metric: str) -> float | None:
    """Return the first step that reaches `goal`'s last height, or None."""
    import numpy as np

    (steps, heights), (_, reached) = curve_of(run, metric), curve_of(goal, metric)
    if not len(heights) or not len(reached):
        return None
    there = np.flatnonzero(heights >= reached[-1])
    return float(steps[there[0]]) if len(there) else None


SEEDS_OF_A_FINDING = 5


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of evaluations. value: of a problem, or None. better: the sign of what is better. bounded: whether it
    lies between 0 and 1."""

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
    """Condition of a measurement. suffix: of its figures' names."""

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
class ProblemCount:
    """Number of problems behind a figure. counted: with a value in every run. of: all that were measured."""

    counted: int
    of: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a comparison. arms: each arm's estimate or None. differences: the other arms less the first, where
    they can be paired. problems: None for figures that are not over problems."""

    section: str
    name: str
    label: str
    digits: int
    better: int
    arms: dict[str, Interval | None]
    differences: dict[str, Paired]
    problems: ProblemCount | None = None


Arms = Mapping[str, Sequence[ArmRun]]
"""Each arm's runs, one a seed, in the same order in all arms; the first arm is what the others are compared with."""


def figures(arms: Arms) -> list[Figure]:
    """Return all figures in table order, leaving out those without a measurement."""
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
                    ProblemCount(count, evaluated_on(list(arms.values()), condition.folder, condition.setting)),
                )
            )
        times = {arm: [cpu_of_a_rollout(run, condition.folder, condition.setting) for run in arms[arm]] for arm in arms}
        if all(time is not None for own in times.values() for time in own):
            found.append(by_seed(condition.title, f"cpu_ms{condition.suffix}", "CPU ms", 0, 0, times))
    return found


def _learning(arms: Arms) -> list[Figure]:
    """Figures of the learning curve: its mean height, its height at the tokens of the seed's thriftiest arm, and the
    steps to the first arm's final height, over the seeds that reached it."""
    metric = curve_metric(run.run for runs in arms.values() for run in runs)
    areas = {arm: [curve_area(run.run, metric) for run in runs] for arm, runs in arms.items()}
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
    costs: list[tuple[str, str, Callable[[ArmRun], float | None]]] = [
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
        for name, label, value in costs
    ]
    return [row for row in rows if row.name != "alarms" or any(one and one.mean for one in row.arms.values())]


def _alarms(run: ArmRun) -> float | None:
    """Count how often the alarm began."""
    alarms = [step.get("first_try_alarm") for step in run.run.metrics]
    if all(one is None for one in alarms):
        return None
    return float(sum(bool(now) and not before for before, now in zip([None, *alarms], alarms, strict=False)))


def by_seed(
    title: str, name: str, label: str, digits: int, better: int, values: Mapping[str, Sequence[float | None]],
    *, most: float = math.inf, least: float = 0.0,
) -> Figure:  # fmt: skip
    """Return a figure from `least` to `most` with one value a run: Student's t over seeds, or the value of a single
    seed. Differences are paired by seed."""
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
    """Steps to the first arm's final score, as the mean of the seeds that reached it, and how many did. steps: None for
    an arm without curves."""
    known = {arm: None if own is None else [v for v in own if v is not None] for arm, own in steps.items()}
    means = {arm: exactly(statistics.fmean(own)) if own else None for arm, own in known.items()}
    counts = {arm: None if own is None else exactly(float(len(own))) for arm, own in known.items()}
    return [
        Figure(title, "steps_to_first", "steps to first arm's end", 0, -1, means, {}),
        Figure(title, "reached_first", "  seeds that came there", 0, 1, counts, {}),
    ]


def _interval(values: Sequence[float], floor: float, ceiling: float) -> Interval:
    return exactly(values[0]) if len(values) == 1 else over_seeds(values, floor=floor, ceiling=ceiling)


FORMAT = 1


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """A finished comparison. name: of the cell. arms: each arm's runs, one a seed, the first being the baseline.
    recipes: by arm. matched: the equal budget in words. faults: share of calls that fail in that condition. seconds:
    wall time in all."""

    name: str
    arms: dict[str, list[ArmRun]]
    recipes: dict[str, str]
    matched: str
    faults: float
    seconds: float

    @property
    def seeds(self) -> list[int]:
        return [run.run.seed for run in next(iter(self.arms.values()))]


def write_comparison(found: ArmComparison, out: Path) -> list[Sheet]:
    """Write compare.json, table.md, table.tex, table.csv and curves (PNG, SVG); return the tables. Raises StorageError,
    MissingExtra without matplotlib."""
    rows = figures(found.arms)
    sheets = [_values(found, rows), _differences(found, rows)]
    write_whole(out / "compare.json", msgspec.json.format(msgspec.json.encode(summary(found, rows)), indent=1) + b"\n")
    write_whole(out / "table.md", "\n".join(sheet.markdown() for sheet in sheets))
    write_whole(out / "table.tex", "\n".join(sheet.latex() for sheet in sheets))
    write_whole(out / "table.csv", to_csv(_long(found, rows)))
    runs = {arm: [one.run for one in runs] for arm, runs in found.arms.items()}
    draw_curves(runs, out, curves=COMPARED, formats=("png", "svg"))
    return sheets


def summary(found: ArmComparison, rows: Sequence[Figure]) -> dict[str, object]:
    """Return the content of compare.json. One cell; each arm's figures by name as {mean, low, high}; under `difference`
    the arm less the first, paired, with each seed's value; and how many problems are behind each figure."""
    first = next(iter(found.arms))
    arms = {
        arm: {
            "recipe": found.recipes[arm],
            "seeds": found.seeds,
            **{row.name: row.arms[arm] for row in rows},
            **({"difference": {r.name: _difference_fields(r.differences[arm]) for r in rows if arm in r.differences}}
               if arm != first else {}),
        }
        for arm in found.arms
    }  # fmt: skip
    return {
        "format": FORMAT,
        "compared_with": first,
        "matched": found.matched,
        "faults": found.faults,
        "seconds": round(found.seconds, 1),
        "finding": len(found.seeds) >= SEEDS_OF_A_FINDING,
        "note": caveat(len(found.seeds)),
        "cells": [{"name": found.name, "arms": arms}],
        "problems": {row.name: row.problems for row in rows if row.problems},
        "about": {row.name: f"{row.section}: {row.label}" for row in rows},
    }


def caveat(seeds: int) -> str:
    """Return a warning that so few seeds prove little, or ""."""
    if seeds >= SEEDS_OF_A_FINDING:
        return ""
    many = "One seed" if seeds == 1 else f"{seeds} seeds"
    says = "say" if seeds > 1 else "says"
    return f"{many} {says} little about other seeds: this is not a finding. For one, take {SEEDS_OF_A_FINDING} or more."


def note_left_out(rows: Sequence[Figure], label: Callable[[Figure], str]) -> list[str]:
    """Return a note on figures that leave out problems, if any do."""
    left = [
        f"{label(row)} {over.counted} of {over.of}" for row in rows if (over := row.problems) and over.counted < over.of
    ]
    return [f"Over the problems that have a value in every run alone: {', '.join(left)}."] if left else []


def _difference_fields(one: Paired) -> dict[str, object]:
    """Fields of a difference; better and worse count problems, where it is over problems."""
    counts = {"better": one.better, "worse": one.worse} if one.better or one.worse else {}
    return {**asdict(one.difference), "by_seed": list(one.by_seed), **counts}


def _values(found: ArmComparison, rows: Sequence[Figure]) -> Sheet:
    cells = [(row, (row.label, *(cell(row.arms[arm], row.digits) for arm in found.arms))) for row in rows]
    seeds = len(found.seeds)
    ranges = "crossed bootstrap over seeds and problems" if seeds > 1 else "bootstrap over problems"
    notes = [
        f"Calls, tokens: of a rollout; T = 1. Ranges: 95 %, {ranges}"
        + (" (curve and training: Student's t over seeds)." if seeds > 1 else "."),
        f"In training: {found.matched}. CPU ms: of a rollout, evaluating.",
    ]
    if found.faults:
        notes.append(f"Faulty tools: {found.faults:.0%} of calls fail with a TimeoutError or a ConnectionError.")
    return Sheet(
        f"{len(found.arms)} arms, {seeds} {'seed' if seeds == 1 else 'seeds'}", ("", *found.arms), _sections(cells),
        (*notes, *note_left_out(rows, lambda row: f"{row.label} ({row.section})"), *_caveats(seeds)),
    )  # fmt: skip


def _differences(found: ArmComparison, rows: Sequence[Figure]) -> Sheet:
    """Table of the figures that can be better or worse; costs are in the other table."""
    first, *others = found.arms
    cells = [
        (row, (row.label, *(difference(row.differences.get(arm), row.digits) for arm in others)))
        for row in rows
        if row.better and row.differences
    ]
    note = f"Paired by seed{' and problem' if cells else ''}; 95 %. A star: the range leaves out 0."
    return Sheet(f"Difference from {first}", ("", *others), _sections(cells), (note, *_caveats(len(found.seeds))))


def _caveats(seeds: int) -> list[str]:
    return [text] if (text := caveat(seeds)) else []


def _sections(
    cells: Sequence[tuple[Figure, tuple[str, ...]]],
) -> tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]:
    titles = dict.fromkeys(row.section for row, _ in cells)
    return tuple((title, tuple(texts for row, texts in cells if row.section == title)) for title in titles)


def difference(one: Paired | None, digits: int) -> str:
    """Format as `+.012 [−.020, +.044]`, starred where the range leaves out 0."""
    if one is None:
        return "–"
    interval = one.difference
    if interval.low == interval.high:
        return signed(interval.mean, digits)
    star = " *" if interval.low > 0 or interval.high < 0 else ""
    return f"{signed(interval.mean, digits)} [{signed(interval.low, digits)}, {signed(interval.high, digits)}]{star}"


def signed(value: float, digits: int) -> str:
    """Format as `+.012`, `−.020` or `.000`."""
    text = number(abs(value), digits)
    if not round(value, digits):
        return text
    return f"{'+' if value > 0 else '−'}{text}"


def _long(found: ArmComparison, rows: Sequence[Figure]) -> list[list[object]]:
    """A row for each figure of each arm."""
    heads = ["section", "figure", "arm", "seeds", "mean", "low", "high"]
    made: list[list[object]] = [[*heads, "difference", "difference_low", "difference_high"]]
    for row in rows:
        for arm in found.arms:
            one = row.differences.get(arm)
            difference = None if one is None else one.difference
            made.append([row.section, row.name, arm, len(found.seeds), *_limits(row.arms[arm]), *_limits(difference)])
    return made


def _limits(interval: Interval | None) -> list[object]:
    return [None] * 3 if interval is None else [interval.mean, interval.low, interval.high]
