"""GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2) without its KL term.

Â_i = (r_i - mean(r)) / (std(r) + ε), the same for all ids of a rollout; the clipped surrogate with one ε; the mean over
each rollout's ids, then over rollouts (equation 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from retcon.config.schema import RLSection
from retcon.config.section import Rate
from retcon.train.objective.advantage import grpo

if TYPE_CHECKING:  # the list of algorithms is read where there is no torch
    from torch import Tensor

    from retcon.train.batch import Batch
    from retcon.train.objective.loss import Loss, Totals


class Grpo(RLSection):
    """`algorithm = "grpo"`. The paper has one ε, whose value it does not tell: PPO's .2."""

    clip_low: Rate = Field(0.2, description="ε_low: the ratio is clipped to 1 - ε_low … 1 + ε_high")
    clip_high: Rate = Field(0.2, description="ε_high")

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)

    def loss(self, logprobs: Tensor, batch: Batch, totals: Totals, *, muted: Tensor | None = None) -> Loss:
        from retcon.train.objective.loss import batch_loss

        clip = (self.clip_low, self.clip_high)
        return batch_loss(logprobs, batch, totals, clip=clip, aggregate="sequence", muted=muted)
