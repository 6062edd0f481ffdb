"""Several runs on the same problems: means and paired differences, with seeds and problems both as chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from retcon.evaluate.statistics import Interval, over_problems, resampled, t_quantile

EVEN = 1e-9
"""Means over seeds that differ by less are equal: sums of fractions are rounded."""


@dataclass(frozen=True, slots=True)
class Paired:
    """One arm less another. difference: of the means. by_seed: the difference of each seed, in order. better, worse:
    problems whose mean over seeds is higher, and lower."""

    difference: Interval
    by_seed: tuple[float, ...]
    better: int
    worse: int


def over_runs(values: np.ndarray, *, seed: int = 0, floor: float = -math.inf, ceiling: float = math.inf) -> Interval:
    """The mean of (S, N) values of S seeds on the same N problems, with 95 % limits for other seeds and other problems.

    Crossed bootstrap (Owen 2007, "The pigeonhole bootstrap"): how the mean varies where seeds are drawn anew, and where
    problems are, with replacement; each variance times n / (n - 1), as a bootstrap of n is that much too narrow. Few
    seeds know little about their own spread, and quantiles of a bootstrap cannot lie beyond the seeds that were run. So
    each source's standard error is multiplied by Student's t of its own n - 1 degrees of freedom, and the two are
    joined as the sides of a right angle; one t for both (Satterthwaite) holds too rarely with two seeds. With one
    seed: `over_problems`, which says nothing about other seeds. Cut to floor and ceiling. Seeded.

    Raises ValueError for no values, and for values that are not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise ValueError("an interval needs finite values, of one seed and one problem at least")
    if len(values) == 1:
        return _cut(over_problems(values[0].tolist(), seed=seed), floor, ceiling)
    draws = np.random.default_rng(seed)
    mean = float(values.mean())
    half = math.hypot(*(_half(values.mean(axis=axis), draws) for axis in (1, 0)))
    return _cut(Interval(mean, mean - half, mean + half), floor, ceiling)


def paired(ours: np.ndarray, theirs: np.ndarray, *, seed: int = 0, most: float = math.inf) -> Paired:
    """`ours` less `theirs`, both (S, N): the same seeds, in order, on the same problems. As `over_runs`, of the
    differences: what a seed's cold start and a problem's difficulty do to both arms falls out. most: that the means can
    differ by."""
    if ours.shape != theirs.shape:
        raise ValueError(f"{ours.shape} and {theirs.shape} values cannot be paired")
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    by_problem = differences.mean(axis=0)
    return Paired(
        over_runs(differences, seed=seed, floor=-most, ceiling=most),
        tuple(differences.mean(axis=1).tolist()),
        better=int((by_problem > EVEN).sum()),
        worse=int((by_problem < -EVEN).sum()),
    )


def _half(means: np.ndarray, draws: np.random.Generator) -> float:
    """Half of the interval of the mean of n values that are drawn anew; 0 of one value, which tells none, and of
    equal ones."""
    count = len(means)
    if means.max() == means.min():
        return 0.0
    error = resampled(means, draws).std() * math.sqrt(count / (count - 1))
    return t_quantile(count - 1) * float(error)


def _cut(interval: Interval, floor: float, ceiling: float) -> Interval:
    return Interval(interval.mean, max(floor, interval.low), min(ceiling, interval.high))
