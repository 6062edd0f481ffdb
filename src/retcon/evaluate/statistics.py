"""Estimates with uncertainty: pass@k, bootstrap over problems, t over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an error of the command line need not wait for it
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
    """Return the unbiased estimate of pass@k: 1 − C(n − c, k) / C(n, k).

    samples: n rollouts of one problem, of which `passed` (c) pass; Chen et al. 2021 (arXiv 2107.03374), equation 1.
    Raises ValueError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {passed} passes in {samples} samples is not defined")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def exactly(value: float) -> Interval:
    """Wrap a figure without uncertainty, such as a cost, in an interval."""
    return Interval(value, value, value)


def over_problems(values: Sequence[float], *, seed: int = 0) -> Interval:
    """Return the mean of (N,) values, bootstrapped over problems. Percentiles of 2,000 seeded resamples.

    Problems are the unit, not rollouts: rollouts of one problem are not independent. Raises ValueError for no values.
    """
    import numpy as np

    if not values:
        raise ValueError("an interval needs at least one problem")
    sample = np.asarray(values, dtype=np.float64)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled_means(sample, np.random.default_rng(seed)), [tail, 1 - tail])
    return Interval(float(sample.mean()), float(low), float(high))


def resampled_means(values: np.ndarray, draws: np.random.Generator) -> np.ndarray:
    """Return the means of RESAMPLES bootstrap samples of (N,) values. Drawn in parts: all draws for a hundred thousand
    values would take gigabytes."""
    import numpy as np

    count = len(values)
    rows = max(1, min(RESAMPLES, DRAWN // count))
    sizes = [min(rows, RESAMPLES - done) for done in range(0, RESAMPLES, rows)]
    return np.concatenate([values[draws.integers(count, size=(size, count))].mean(axis=1) for size in sizes])


def over_seeds(values: Sequence[float], *, floor: float = -math.inf, ceiling: float = math.inf) -> Interval:
    """Return the mean of (S,) values with Student's t interval. S ≥ 2; cut to `floor` and `ceiling`.

    Raises ValueError for fewer than two seeds.
    """
    if len(values) < 2:
        raise ValueError("a t interval needs at least two seeds")
    mean = statistics.fmean(values)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, max(floor, mean - half), min(ceiling, mean + half))


def t_quantile(freedom: int) -> float:
    """Return the .975 quantile of Student's t. By table to 10 degrees of freedom, then by expansion (error < 1e-4).

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


EVEN = 1e-9
"""Means over seeds that differ by less are equal: sums of fractions are rounded."""


@dataclass(frozen=True, slots=True)
class Paired:
    """One arm less another. difference: of the means. by_seed: each seed's difference, in order. better, worse:
    problems whose mean over seeds is higher, and lower."""

    difference: Interval
    by_seed: tuple[float, ...]
    better: int
    worse: int


def over_runs(values: np.ndarray, *, seed: int = 0, floor: float = -math.inf, ceiling: float = math.inf) -> Interval:
    """Return the mean of (S, N) values, bootstrapped over seeds and problems.

    Crossed bootstrap (Owen 2007, "The pigeonhole bootstrap"): how the mean varies where seeds are drawn anew, and where
    problems are, with replacement; each variance times n / (n - 1), as a bootstrap of n is that much too narrow. Few
    seeds know little about their own spread, and quantiles of a bootstrap cannot lie beyond the seeds that were run. So
    each source's standard error is multiplied by Student's t of its own n - 1 degrees of freedom, and the two are
    joined as the sides of a right angle; one t for both (Satterthwaite) holds too rarely with two seeds. With one
    seed: `over_problems`, which says nothing about other seeds. Cut to floor and ceiling. Seeded.

    Raises ValueError for no values, and for values that are not finite.
    """
    import numpy as np

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
    """Return `ours` less `theirs`, both (S, N): same seeds and problems. Intervals as in `over_runs`: effects of a
    seed's cold start and a problem's difficulty cancel. most: largest possible difference of the means."""
    import numpy as np

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
    """Half of the interval of the mean of n resampled values; 0 for a single value, which has no spread, and for equal
    values."""
    count = len(means)
    if means.max() == means.min():
        return 0.0
    error = resampled_means(means, draws).std() * math.sqrt(count / (count - 1))
    return t_quantile(count - 1) * float(error)


def _cut(interval: Interval, floor: float, ceiling: float) -> Interval:
    return Interval(interval.mean, max(floor, interval.low), min(ceiling, interval.high))


NORMAL = statistics.NormalDist()
POWER = 0.8


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean, clustered by problem; values: (N,).

    Miller 2024 ("Adding error bars to evals", arXiv 2411.00640), section 2.2, where each problem has as many rollouts.
    0 for one value.
    """
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def share_interval(rates: Sequence[float]) -> Interval:
    """Return the mean of (N,) shares with Wilson's interval for clustered draws.

    Problems, not rollouts, are the sample: the draws are p(1 − p)/SE² (Korn and Graubard 1998), SE that of
    `standard_error`, or N where the rates do not differ, so that 0 of 20 still has a range. Raises ValueError for none.
    """
    if not rates:
        raise ValueError("an interval needs at least one problem")
    mean, error = statistics.fmean(rates), standard_error(rates)
    draws = mean * (1 - mean) / error**2 if error > EVEN else float(len(rates))
    z2 = NORMAL.inv_cdf((1 + CONFIDENCE) / 2) ** 2
    middle = (mean + z2 / (2 * draws)) / (1 + z2 / draws)
    half = math.sqrt(z2 * (mean * (1 - mean) / draws + z2 / (4 * draws**2))) / (1 + z2 / draws)
    return Interval(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))


def paired_interval(differences: Sequence[float]) -> Interval:
    """Return the mean of (N,) differences with Student's t interval. Miller 2024, section 4.2. ValueError if empty.

    One problem has no spread: its limits are infinite.
    """
    if not differences:
        raise ValueError("an interval needs at least one problem")
    mean = statistics.fmean(differences)
    if len(differences) == 1:
        return Interval(mean, -math.inf, math.inf)
    half = t_quantile(len(differences) - 1) * standard_error(differences)
    return Interval(mean, mean - half, mean + half)


def problems_needed(spread: float, effect: float) -> int:
    """Return the problems needed to find a paired difference of `effect`. Power .8 (Miller 2024, section 5).

    n = ((z.975 + z.8) · spread / effect)². spread: standard deviation of the per-problem differences, including the
    noise of K sampled rollouts, or ω where nothing is sampled.
    """
    return math.ceil(((NORMAL.inv_cdf((1 + CONFIDENCE) / 2) + NORMAL.inv_cdf(POWER)) * spread / effect) ** 2)


def majority(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    """Return the chance that a problem's most frequent answer is right. Ties are broken at random.

    answers: one a rollout, alike where they are equal text; None does not vote. 0 where none votes.
    """
    votes: dict[str, list[bool]] = {}
    for answer, is_right in zip(answers, right, strict=True):
        if answer is not None:
            votes.setdefault(answer, []).append(is_right)
    most = max(map(len, votes.values()), default=0)
    return statistics.fmean([statistics.fmean(one) for one in votes.values() if len(one) == most]) if votes else 0.0
