"""GSPO (arXiv 2507.18071): the ratio, and its clip, of a whole sequence, as the reward is of a whole sequence: the
geometric mean of its tokens' ratios (equation 7), with GRPO's advantage (equation 6), averaged over sequences
(equation 5).
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
    """`algorithm = "gspo"`. Both ε's are the paper's (section 5.1): a mean over tokens moves less than one token."""

    clip_low: float = Field(3e-4, gt=0, le=1, description="ε_low: the sequence's ratio is clipped to 1 - ε_low … "
                            "1 + ε_high")  # fmt: skip
    clip_high: Rate = Field(4e-4, description="ε_high")

    @property
    def aggregate(self) -> Aggregate:
        return "sequence"

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)

    def loss(self, logprobs: Tensor, batch: Batch, totals: Totals, *, masked: Tensor | None = None) -> Loss:
        from retcon.train.objective.loss import clipped, log_ratios, reduced, sequence_ratio

        ratio = sequence_ratio(log_ratios(logprobs, batch), batch.mask)
        terms = clipped(ratio, batch.advantages, low=self.clip_low, high=self.clip_high)
        return reduced(terms, logprobs, batch, totals, aggregate=self.aggregate, masked=masked)
