"""Learning curves of a comparison: how high they lie, and when they reach where another one ended."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from retcon.report.plots import CURVES, Curve, running_mean
from retcon.report.runs import Run

HELD_OUT = "eval_pass_rate"
"""What evaluations in between tell (`evaluate.every`)."""
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


def learnt(runs: Iterable[Run]) -> str:
    """The metric that the learning curves of all these are of: held-out problems where one of the runs has two
    evaluations on them or more, else what training's own rollouts passed, which repairs raise."""
    counts = (sum(step.get(HELD_OUT) is not None for step in run.metrics) for run in runs)
    return HELD_OUT if any(count > 1 for count in counts) else IN_TRAINING


def curve_of(run: Run, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and heights, both (T,), of a run's learning curve: its evaluations, or the running mean of training."""
    if metric != IN_TRAINING:
        points = [(step["step"] or 0, value) for step in run.metrics if (value := step.get(metric)) is not None]
        steps, heights = np.array(points, dtype=float).reshape(-1, 2).T
        return steps, heights
    rates = np.array([np.nan if (v := step.get(metric)) is None else v for step in run.metrics])
    steps = np.arange(1.0, len(rates) + 1)
    known = ~np.isnan(rates)
    return steps[known], running_mean(rates)[known]


def area(run: Run, metric: str) -> float | None:
    """The curve's mean height from its first point to its last, by trapezoids; None of fewer than two points."""
    steps, heights = curve_of(run, metric)
    if len(steps) < 2:
        return None
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(steps)).sum() / (steps[-1] - steps[0]))


def at_tokens(run: Run, tokens: float) -> float | None:
    """What the run passed of the held-out problems when it had sampled so many tokens, on the line between the two
    evaluations about it; None where there are none."""
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
    """The first step at which the run's curve is as high as the last point of `goal`'s; None where it never is."""
    (steps, heights), (_, reached) = curve_of(run, metric), curve_of(goal, metric)
    if not len(heights) or not len(reached):
        return None
    there = np.flatnonzero(heights >= reached[-1])
    return float(steps[there[0]]) if len(there) else None
