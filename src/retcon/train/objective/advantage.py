"""Advantages of a group: how much better each rollout did than its siblings. Pure; (G,) rewards to (G,) advantages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

EPSILON = 1e-6
"""ε of a group's standard deviation."""
STEP_EPSILON = 1e-8
"""ε of a whole step's variance."""


def grpo(rewards: Sequence[float], *, epsilon: float = EPSILON) -> list[float]:
    """Â_i = (r_i - mean(r)) / (std(r) + ε): GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

    std is the sample's (over G - 1), as TRL and verl have it; the paper does not say. A group whose rewards are all
    equal, or of one rollout, has nothing to compare: zeros exactly. Raises ValueError for a reward that is not finite.
    """
    centred = dr_grpo(rewards)
    if not any(centred):
        return centred
    scale = statistics.stdev(rewards) + epsilon
    return [c / scale for c in centred]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """Â_i = r_i - mean(r): Dr. GRPO (arXiv 2503.20783, section 3.2), which does not weigh groups by difficulty.

    All equal: zeros exactly, whatever rounding the mean has. Raises ValueError for a reward that is not finite.
    """
    if not all(map(math.isfinite, rewards)):
        raise ValueError(f"rewards must be finite, not {list(rewards)}; drop ungraded rollouts first")
    if len(set(rewards)) <= 1:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    return [r - mean for r in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """Â_i = r_i - mean of the others' r = G / (G - 1) (r_i - mean(r)): RLOO (arXiv 2402.14740, section 2.3).

    All equal, or of one rollout: zeros exactly. Raises ValueError for a reward that is not finite.
    """
    count = len(rewards)
    return [c * count / max(count - 1, 1) for c in dr_grpo(rewards)]


def normalised(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """(Â - mean) / √(variance + ε) over all rollouts of a step: REINFORCE++ (arXiv 2501.03262v9, equations 5 and 7).

    The variance is over N - 1, as verl has it. All equal: zeros exactly.
    """
    left = iter(dr_grpo([value for group in groups for value in group]))
    return scaled([[next(left) for _ in group] for group in groups])


def scaled(groups: Sequence[Sequence[float]]) -> list[list[float]]:
    """`normalised` where the mean is 0 already, but for rounding, which is not subtracted: zeros stay so exactly."""
    values = [value for group in groups for value in group]
    if not any(values):
        return [[0.0] * len(group) for group in groups]
    scale = math.sqrt(statistics.variance(values) + STEP_EPSILON)
    return [[value / scale for value in group] for group in groups]
