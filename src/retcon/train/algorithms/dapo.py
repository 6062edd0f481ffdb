"""DAPO (arXiv 2503.14476): GRPO's advantage (equation 9); clip-higher, ε_high > ε_low (section 3.1); the mean over all
ids of the minibatch (equation 8). Its dynamic sampling is `select.dynamic`.
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


class Dapo(RLSection):
    """`algorithm = "dapo"`. Both ε's are the paper's (section 4.1)."""

    clip_low: Rate = Field(0.2, description="ε_low: the ratio is clipped to 1 - ε_low … 1 + ε_high")
    clip_high: Rate = Field(0.28, description="ε_high")

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)

    def loss(self, logprobs: Tensor, batch: Batch, totals: Totals, *, muted: Tensor | None = None) -> Loss:
        from retcon.train.objective.loss import batch_loss

        clip = (self.clip_low, self.clip_high)
        return batch_loss(logprobs, batch, totals, clip=clip, aggregate="token", muted=muted)
