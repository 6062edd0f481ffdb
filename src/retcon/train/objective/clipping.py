"""Keys and surrogate of algorithms with PPO's clip. Read without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, field_validator

from retcon.config.schema import RLSection
from retcon.config.section import Rate

if TYPE_CHECKING:
    from torch import Tensor

    from retcon.train.batch import Batch
    from retcon.train.objective.loss import Loss, Totals


class ClippedSection(RLSection):
    """An algorithm that clips each token's ratio; subclasses define advantages and averages."""

    mechanisms: ClassVar = {
        **RLSection.mechanisms,
        "dual_clip": ("no token of negative advantage had a ratio above it", "dual_clip_tokens"),
    }
    clip_low: float = Field(0.2, gt=0, le=1, description="ε_low: the ratio is clipped to 1 - ε_low … 1 + ε_high")
    clip_high: Rate = Field(0.2, description="ε_high")
    dual_clip: float = Field(0.0, ge=0, description="c of the dual clip (arXiv 1912.09729): a token of negative "
                             "advantage adds at most c times that to the loss; verl: 3; 0: off")  # fmt: skip

    @field_validator("dual_clip")
    @classmethod
    def _beyond_one(cls, value: float) -> float:
        if 0 < value <= 1:
            raise ValueError("it must be more than 1, or 0 for none")
        return value

    def loss(self, logprobs: Tensor, batch: Batch, totals: Totals, *, masked: Tensor | None = None) -> Loss:
        from retcon.train.objective.loss import batch_loss

        clip = (self.clip_low, self.clip_high)
        dual = self.dual_clip or None
        return batch_loss(logprobs, batch, totals, clip=clip, aggregate=self.aggregate, dual=dual, masked=masked)
