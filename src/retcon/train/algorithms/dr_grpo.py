"""Dr. GRPO (arXiv 2503.20783, section 3.2): GRPO without its two biases. The advantage is not divided by the group's
standard deviation, which weighs prompts by their difficulty; a rollout's terms are added up and divided by one number
for all, not by the rollout's own length, which makes long wrong answers cheap.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from retcon.config.section import Aggregate, Positive
from retcon.train.objective.advantage import dr_grpo
from retcon.train.objective.clipping import ClippedSection


class DrGrpo(ClippedSection):
    """Section `algorithm = "dr_grpo"`. ε: the paper's (table 6)."""

    loss_tokens: Positive = Field(320, description="what each rollout's sum of terms is divided by; the paper takes "
                                  "the limit on a rollout's tokens")  # fmt: skip

    @property
    def aggregate(self) -> Aggregate:
        return self.loss_tokens

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return dr_grpo(rewards)
