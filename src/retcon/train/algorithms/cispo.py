"""CISPO (MiniMax-M1, arXiv 2506.13585): the importance weight is clipped, not the update.

So rare tokens that PPO's clip drops after the first minibatch keep their gradient (equations 4, 5). Mean over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from retcon.config.schema import RLSection
from retcon.config.section import Probability, Rate
from retcon.train.objective.advantage import grpo

if TYPE_CHECKING:  # the list of algorithms is read where there is no torch
    from torch import Tensor

    from retcon.train.batch import Batch
    from retcon.train.objective.loss import Loss, Totals


class Cispo(RLSection):
    """Section `algorithm = "cispo"`. The paper has no lower bound (section 3.1) and does not give its upper one."""

    clip_low: Probability = Field(1.0, description="ε_low: the weight is clipped to 1 - ε_low … 1 + ε_high; 1: no "
                                  "lower bound")  # fmt: skip
    clip_high: Rate = Field(0.28, description="ε_high")

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)

    def loss(self, logprobs: Tensor, batch: Batch, totals: Totals, *, masked: Tensor | None = None) -> Loss:
        from retcon.train.objective.loss import cispo_terms, log_ratios, reduce_terms, token_ratio

        ratio = token_ratio(log_ratios(logprobs, batch))
        terms = cispo_terms(ratio, batch.advantages, logprobs, low=self.clip_low, high=self.clip_high)
        return reduce_terms(terms, logprobs, batch, totals, aggregate=self.aggregate, masked=masked)
