"""No selection: all rollouts of a prompt are trained on."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.config.schema import SelectSection
from retcon.core.types import Trajectory
from retcon.select.drop import take


class NoSelection(SelectSection):
    """`kind = "none"`."""

    def select(self, group: Sequence[Trajectory], keep: int, *, seed: int) -> list[Trajectory]:
        return take(group, keep)
