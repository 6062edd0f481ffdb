"""Nodes get their root's reward and advantage (SkyRL, pull request 1596)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retcon.config.schema import CreditSection
from retcon.core.types import Trajectory


class Inherit(CreditSection):
    """Section `kind = "inherit"`."""

    def rewards(self, tree: Sequence[Trajectory], reward: float) -> Mapping[str, float]:
        return {node.id: reward for node in tree}
