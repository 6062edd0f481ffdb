"""Advantages of a group's rollouts over their siblings. Pure; (G,) rewards to (G,) advantages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

EPSILON = 1e-6
"""ε of a group's standard deviation."""
STEP_EPSILON = 1e-8
"""ε of a whole step's variance."""


def grpo(rewards: Sequence[float], *, epsilon: float = EPSILON) -> list[float]:
    """Return GRPO's advantages (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    Â_i = (r_i - mean(r)) / (std(r) + ε); std is the sample's (over G - 1), as in TRL and verl; the paper does not
    specify it. Equal rewards, or one rollout: zeros exactly. Raises ValueError for a reward that is not finite.
    """
    centred = dr_grpo(rewards)
    if not any(centred):
        return centred
    scale = statistics.stdev(rewards) + epsilon
    return [c / scale for c in centred]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """Return Dr. GRPO's advantages (arXiv 2503.20783, section 3.2).

    Â_i = r_i - mean(r), without a weight by difficulty. Equal rewards: zeros exactly, in spite of the mean's rounding.
    Raises ValueError for a reward that is not finite.
    """
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"rewards must be finite, not {list(rewards)}; drop ungraded rollouts first")
    if len(set(rewards)) <= 1:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [r - mean for r in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """Return RLOO's advantages (arXiv 2402.14740, section 2.3).

    Â_i = r_i - mean of the others' r = G / (G - 1) (r_i - mean(r)). Equal rewards, or one rollout: zeros exactly.
    Raises ValueError for a reward that is not finite.
    """
    count = len(rewards)
    return [c * count / max(count - 1, 1) for c in dr_grpo(rewards)]


def normalize_step(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """Normalise advantages over a step: REINFORCE++ (arXiv 2501.03262v9, equations 5 and 7).

    (Â - mean) / √(variance + ε), the variance over N - 1, as in verl. Equal ones: zeros exactly.
    """
    left = iter(dr_grpo([value for group in groups for value in group]))
    return scale_step([[next(left) for _ in group] for group in groups])


def scale_step(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """Normalise advantages whose mean is 0 up to rounding, without subtracting it: zeros stay exact."""
    values = [value for group in groups for value in group]
    if not any(values):
        return [[0.0] * len(group) for group in groups]
    scale = math.sqrt(statistics.variance(values) + STEP_EPSILON)
    return [[value / scale for value in group] for group in groups]
