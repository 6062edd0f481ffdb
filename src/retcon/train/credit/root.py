"""Roots alone are trained: what the model answers to its own programs is data to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retcon.config.schema import CreditSection
from retcon.core.types import Trajectory


class Root(CreditSection):
    """`kind = "root"`."""

    def rewards(self, tree: Sequence[Trajectory], reward: float) -> Mapping[str, float]:
        return {tree[0].id: reward}
