"""GSPO (arXiv 2507.18071): ratio and clip of a whole sequence, like the reward: the geometric mean of its tokens'
ratios (equation 7), with GRPO's advantage (equation 6), averaged over sequences (equation 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from retcon.config.schema import RLSection
from retcon.config.section import Aggregate, Rate
from retcon.train.objective.advantage import grpo

if TYPE_CHECKING:  # the list of algorithms is read where there is no torch
    from torch import Tensor

    from retcon.train.batch import Batch
    from retcon.train.objective.loss import Loss, Totals


class Gspo(RLSection):
    """Section `algorithm = "gspo"`. The ε's are the paper's (section 5.1): a mean moves less than a token."""

    clip_low: float = Field(3e-4, gt=0, le=1, description="ε_low: the sequence's ratio is clipped to 1 - ε_low … "
                            "1 + ε_high")  # fmt: skip
    clip_high: Rate = Field(4e-4, description="ε_high")

    @property
    def aggregate(self) -> Aggregate:
        return "sequence"

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)

    def loss(self, logprobs: Tensor, batch: Batch, totals: Totals, *, masked: Tensor | None = None) -> Loss:
        from retcon.train.objective.loss import clip_terms, log_ratios, reduce_terms, sequence_ratio

        ratio = sequence_ratio(log_ratios(logprobs, batch), batch.mask)
        terms = clip_terms(ratio, batch.advantages, low=self.clip_low, high=self.clip_high)
        return reduce_terms(terms, logprobs, batch, totals, aggregate=self.aggregate, masked=masked)
