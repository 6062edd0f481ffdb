"""Estimates and their uncertainty: unbiased pass@k, bootstrap over problems, Student's t over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2000
DRAWN = 1 << 24
"""Values that are drawn at a time, at most."""

_T_TABLE = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Two-sided 95 % quantiles of Student's t for 1 to 10 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence limits; low = mean = high where no uncertainty is claimed."""

    mean: float
    low: float
    high: float


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k rollouts passes: 1 − C(n − c, k) / C(n, k).

    samples: n rollouts of one problem, of which `passed` (c) pass; Chen et al. 2021 (arXiv 2107.03374), equation 1.
    Raises ValueError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {passed} passes in {samples} samples is not defined")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def exactly(value: float) -> Interval:
    """A figure without an interval, such as a cost."""
    return Interval(value, value, value)


def over_problems(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Mean of per-problem values, (N,), with a percentile bootstrap over problems (seeded, 2,000 resamples).

    Problems are the unit, not rollouts: rollouts of one problem are not independent. Raises ValueError for no values.
    """
    if not values:
        raise ValueError("an interval needs at least one problem")
    sample = np.asarray(values, dtype=np.float64)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled(sample, np.random.default_rng(seed)), [tail, 1 - tail])
    return Interval(float(sample.mean()), float(low), float(high))


def resampled(values: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """The means of RESAMPLES samples of (N,) values, drawn with replacement; of many values part by part, as all that
    is drawn of a hundred thousand would take gigabytes."""
    count = len(values)
    rows = max(1, min(RESAMPLES, DRAWN // count))
    sizes = [min(rows, RESAMPLES - done) for done in range(0, RESAMPLES, rows)]
    return np.concatenate([values[draws.integers(count, size=(size, count))].mean(axis=1) for size in sizes])


def over_seeds(values: Sequence[float], *, floor: float = -math.inf, ceiling: float = math.inf) -> Interval:
    """Mean of one value a seed, (S,), S ≥ 2, with Student's t interval, cut to what the figure can be.

    Raises ValueError for fewer than two seeds.
    """
    if len(values) < 2:
        raise ValueError("a t interval needs at least two seeds")
    mean = statistics.fmean(values)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, max(floor, mean - half), min(ceiling, mean + half))


def t_quantile(freedom: int) -> float:
    """The .975 quantile of Student's t; by table to 10 degrees of freedom, then by expansion (error < 1e-4).

    The expansion around the normal quantile z is Abramowitz and Stegun 26.7.5.
    """
    if freedom <= len(_T_TABLE):
        return _T_TABLE[freedom - 1]
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
