"""AEPO: gradients beyond the clip, and advantages weighed by entropy (arXiv 2510.14545).

A token that was right and has become likelier than the clip allows keeps a gradient of the size that the clip allows,
where PPO's clip leaves it none: those are the tokens that the model was unsure of. The advantage is Â_t (1 + a (H_t -
mean H) / std H), H_t that of π_old before token t. The rest is GRPO's advantage, with the mean over tokens, as in the
published code. There the entropies are of the policy in training, standardised in each micro-batch, which makes the
loss depend on the packing; here of the policy before the step, over its tokens. The two rules can be used separately:
`entropy_advantage` 0, or another algorithm with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from retcon.train.objective.advantage import grpo
from retcon.train.objective.clipping import ClippedSection

if TYPE_CHECKING:  # the list of algorithms is read where there is no torch
    from torch import Tensor

    from retcon.train.batch import Batch
    from retcon.train.objective.loss import Loss, Totals


class Aepo(ClippedSection):
    """Section `algorithm = "aepo"`."""

    entropy_advantage: float = Field(0.2, ge=0, description="a: how much more a token weighs whose entropy is a "
                                     "standard deviation above the step's mean; 0: not at all")  # fmt: skip

    @property
    def entropy_weight(self) -> float:
        return self.entropy_advantage

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)

    def loss(self, logprobs: Tensor, batch: Batch, totals: Totals, *, masked: Tensor | None = None) -> Loss:
        from retcon.train.objective.loss import clip_with_gradient, log_ratios, reduce_terms

        terms = clip_with_gradient(
            log_ratios(logprobs, batch),
            batch.advantages,
            low=self.clip_low,
            high=self.clip_high,
            dual=self.dual_clip or None,
        )
        return reduce_terms(terms, logprobs, batch, totals, aggregate=self.aggregate, masked=masked)
