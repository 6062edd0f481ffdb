"""DAPO (arXiv 2503.14476): GRPO's advantage (equation 9); clip-higher, ε_high > ε_low (section 3.1); the mean over all
tokens of the minibatch (equation 8). Dynamic sampling is `select.dynamic`, overlong filtering and shaping are
`rl.truncated` and `rl.overlong_buffer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from retcon.config.section import Rate
from retcon.train.objective.advantage import grpo
from retcon.train.objective.clipping import ClippedSection


class Dapo(ClippedSection):
    """Section `algorithm = "dapo"`. Both ε's are the paper's (section 4.1)."""

    clip_high: Rate = Field(0.28, description="ε_high")

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return grpo(rewards)
