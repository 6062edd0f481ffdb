"""Only roots are trained: answers to the model's own programs are data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retcon.config.schema import CreditSection
from retcon.core.types import Trajectory


class Root(CreditSection):
    """Section `kind = "root"`."""

    def rewards(self, tree: Sequence[Trajectory], reward: float) -> Mapping[str, float]:
        return {tree[0].id: reward}
