"""The alarm for first tries that fail more often than they did: what purification can hide from the reward.

With purification a failed first try costs a rollout nothing, so the reward can rise while first tries get worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

WINDOW = 10
"""Steps whose first tries are counted together."""
SIGMAS = 5.0
"""Standard errors by which a rise must be beyond chance. So many, as every step looks anew, and at the best of all
windows before: with 4, one run of 200 steps in twenty raises the alarm where nothing drifts, with 5 one in 200."""
TRIES, FAILURES = "first_tries", "first_try_failures"


@dataclass(frozen=True, slots=True)
class Drift:
    """best: the lowest first-try failure rate of WINDOW steps in a row before the last WINDOW. now: that of the last.
    sigmas: standard errors of their difference that lie between them."""

    best: float
    now: float
    sigmas: float

    @property
    def rise(self) -> float:
        return self.now - self.best

    def alarming(self, bound: float) -> bool:
        """Whether the rate has risen by `bound` or more, and beyond chance; a bound of 0 is none."""
        return bool(bound) and self.rise >= bound and self.sigmas >= SIGMAS


def drift(steps: Sequence[Mapping[str, float | None]]) -> Drift | None:
    """What has become of first tries over a run's steps so far; None before there are two windows with tries.

    Rates of two windows that share no step are compared as two proportions: their difference over
    √(p (1 - p) (1/n + 1/m)), p that of both together.
    """
    tries_until, failures_until = (
        [0.0, *accumulate(step.get(name) or 0.0 for step in steps)] for name in (TRIES, FAILURES)
    )
    sums = [
        (tries_until[end] - tries_until[end - WINDOW], failures_until[end] - failures_until[end - WINDOW])
        for end in range(WINDOW, len(steps) + 1)
    ]
    before = [(failures / tries, tries, failures) for tries, failures in sums[:-WINDOW] if tries]
    if not before or not sums[-1][0]:
        return None
    best, tries, failures = min(before)
    now = sums[-1][1] / sums[-1][0]
    both = (failures + sums[-1][1]) / (tries + sums[-1][0])
    error = math.sqrt(both * (1 - both) * (1 / tries + 1 / sums[-1][0]))
    return Drift(best, now, (now - best) / error if error else 0.0)
