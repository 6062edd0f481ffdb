"""Share of purified rollouts, and its schedule over a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from retcon.core.seeds import derive
from retcon.core.types import Trajectory, count_first_tries


@dataclass(frozen=True, slots=True)
class Schedule:
    """Schedule of p by step: piecewise linear between `points`, (step, p), constant outside.

    Two points at one step are a jump; the second holds from that step on. Raises ValueError without points, for a p
    outside [0, 1], and for decreasing steps."""

    points: Sequence[tuple[int, float]]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a schedule needs at least one point (step, p)")
        if not all(0 <= p <= 1 for _, p in self.points):
            raise ValueError(f"p must be in [0, 1]: {list(self.points)}")
        if any(first > second for (first, _), (second, _) in pairwise(self.points)):
            raise ValueError(f"steps must not decrease: {list(self.points)}")

    def at(self, step: int) -> float:
        """p at `step`."""
        passed = bisect_right(self.points, step, key=lambda point: point[0])
        if passed == 0:
            return self.points[0][1]
        if passed == len(self.points):
            return self.points[-1][1]
        (start, p), (end, q) = self.points[passed - 1 : passed + 1]
        return p + (q - p) * (step - start) / (end - start)


def constant(p: float) -> Schedule:
    """p at every step."""
    return Schedule(((1, p),))


def linear(start: float, end: float, steps: int) -> Schedule:
    """Move p from `start` at step 1 to `end` at `steps`."""
    return Schedule(((1, start), (steps, end)))


def is_purified(probability: float, seed: int, step: int, prompt_id: str, index: int) -> bool:
    """Whether rollout `index` of a prompt's group is purified at `step`: true for a share `probability` of all.

    A pure draw from (seed, step, prompt, index); raising `probability` only adds rollouts to those that are purified.
    """
    return derive("purify", seed, step, prompt_id, index) < probability * 2**63


@dataclass(frozen=True, slots=True)
class Probes:
    """p by how often first tries at a prompt fail. Ours.

    count: rollouts of a prompt, the first of its group, that are not purified, whatever p is: the probes. least: the p
    of a prompt at which none of their first tries fails, if p is not less by itself."""

    count: int
    least: float = 0.0

    def share(self, probability: float, made: Sequence[Trajectory]) -> float:
        """p of the group's other rollouts, of which `made` are the probes: least + (probability - least) · f, where f
        is the share of the probes' first tries that failed (`retcon.core.types.count_first_tries`), 0 without any."""
        tries = [count_first_tries(trajectory) for trajectory in made if trajectory.stop != "infrastructure"]
        tried, failed = sum(t.made for t in tries), sum(t.failed for t in tries)
        least = min(self.least, probability)
        return least + (probability - least) * (failed / tried if tried else 0.0)
