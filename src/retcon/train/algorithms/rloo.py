"""RLOO (arXiv 2402.14740): each rollout is compared with the mean of its siblings. Here with PPO's clip, for steps of
several minibatches; in the first of them the ratio is 1 and the gradient is the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence

from retcon.train.objective.advantage import rloo
from retcon.train.objective.clipping import ClippedSection


class Rloo(ClippedSection):
    """Section `algorithm = "rloo"`."""

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return rloo(rewards)
