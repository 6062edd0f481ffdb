"""GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

Â_i = (r_i - mean(r)) / (std(r) + ε), the same for all tokens of a rollout; the clipped surrogate with one ε; the mean
over each rollout's tokens, then over rollouts (equation 3). Its KL term is `rl.kl`: the paper's β is .04.
"""

from __future__ import annotations

from collections.abc import Sequence

from retcon.config.section import Aggregate
from retcon.train.objective.advantage import grpo
from retcon.train.objective.clipping import ClippedSection


class Grpo(ClippedSection):
    """Section `algorithm = "grpo"`. The paper has one ε without a value: PPO's .2."""

    @property
    def aggregate(self) -> Aggregate:
        return "sequence"

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)
