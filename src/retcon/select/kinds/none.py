"""No selection: all rollouts of a prompt are trained on; of more, the first, which says nothing of how they went."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.config.schema import SelectSection
from retcon.core.types import Trajectory


class NoSelection(SelectSection):
    """`kind = "none"`."""

    def select(self, group: Sequence[Trajectory], keep: int, *, seed: int) -> list[Trajectory]:
        return list(group[:keep])
