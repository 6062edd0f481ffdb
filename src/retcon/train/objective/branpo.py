"""Advantages of BranPO (arXiv 2602.03719): contrasts of endings that share a beginning."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from retcon.config.schema import RLSection
from retcon.core.types import Trajectory
from retcon.rollout.strategies.branpo import is_contrast, is_right

TAIL = 2
"""Turns that count as the end of a rollout that was not resumed."""


def find_contrasts(group: Sequence[Trajectory]) -> dict[str, Trajectory]:
    """Map rollouts' ids to the continuation that ended differently."""
    firsts = {one.id: one for one in group if one.branch is None}
    share = fmean(map(is_right, firsts.values())) if firsts else 0.0
    found: dict[str, Trajectory] = {}
    for other in group:
        one = firsts.get(other.branch.parent) if other.branch is not None else None
        if one is not None and is_contrast(one, other, share):
            found.setdefault(one.id, other)
    return found


def with_contrasts(group: Sequence[Trajectory]) -> list[Trajectory]:
    """Drop the continuations that ended as the rollout that they resume."""
    kept = {other.id for other in find_contrasts(group).values()}
    return [one for one in group if one.branch is None or one.id in kept]


def ending_advantages(group: Sequence[Trajectory], advantages: Sequence[float], config: RLSection) -> list[list[float]]:
    """Return the advantage of every turn of a group, (G, turns).

    A turn after the point where a rollout was resumed has the rollout's own advantage, among all that are left. A turn
    before it has Â over the mean reward of the two that share it, among the group's beginnings, and is learnt from
    once. The first turn of the worse ending has 0 where its advantage is positive (redundant step masking). As in the
    authors' code, but that a single beginning has 0.

    Args:
        advantages: (G,), of `with_contrasts(group)`.
    """
    contrasts = find_contrasts(group)
    resumed = {other.id: one for one in group if (other := contrasts.get(one.id)) is not None}
    starts = [_start(one, contrasts) for one in group]
    begins = [n for n, one in enumerate(group) if one.branch is None and starts[n] > 0]
    values = [_mean_reward(group[n], contrasts) for n in begins]
    shared = dict(zip(begins, config.advantages_of_step([values])[0] if len(values) > 1 else [0.0], strict=False))
    found = []
    for n, (one, advantage) in enumerate(zip(group, advantages, strict=True)):
        other = contrasts.get(one.id) or resumed.get(one.id)
        ending = [advantage] * (len(one.turns) - starts[n])
        if other is not None and ending and _is_worse(one, other):
            ending[0] = min(0.0, advantage)
        found.append([shared.get(n, 0.0)] * starts[n] + ending)
    return found


def _start(one: Trajectory, contrasts: dict[str, Trajectory]) -> int:
    """Return the first turn of a rollout's ending."""
    other = contrasts.get(one.id, one)
    return max(0, len(one.turns) - TAIL) if other.branch is None else other.branch.turns


def _mean_reward(one: Trajectory, contrasts: dict[str, Trajectory]) -> float:
    return fmean((two.reward or 0.0) for two in (one, contrasts.get(one.id, one)))


def _is_worse(one: Trajectory, other: Trajectory) -> bool:
    if is_right(one) != is_right(other):
        return is_right(other)
    return len(one.turns) > len(other.turns)
