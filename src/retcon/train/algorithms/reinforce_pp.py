"""REINFORCE++ (arXiv 2501.03262): advantages are normalised over the whole step, not within a group, so that a group of
few distinct rewards is not blown up by its own small deviation. With the clipped surrogate (version 9, equation 1). The
paper adds a KL loss to the variant with a baseline (equation 8): `rl.kl` with `kl_estimator = "k2"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from retcon.train.objective.advantage import dr_grpo, normalize_step, scale_step
from retcon.train.objective.clipping import ClippedSection


class ReinforcePP(ClippedSection):
    """Section `algorithm = "reinforce_pp"`."""

    baseline: Literal["none", "group"] = Field("group", description="what is subtracted before the step's rewards are "
        "normalised: the group's mean (REINFORCE++-baseline, section 3.2), or nothing")  # fmt: skip

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return dr_grpo(rewards) if self.baseline == "group" else list(rewards)

    def advantages_of_step(self, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        found = [self.advantages(rewards) for rewards in groups]
        return scale_step(found) if self.baseline == "group" else normalize_step(found)
