"""No selection: training on all rollouts of a prompt, or on the first `keep`."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.config.schema import SelectSection
from retcon.core.types import Trajectory


class NoSelection(SelectSection):
    """`kind = "none"`."""

    def select(self, group: Sequence[Trajectory], keep: int, *, seed: int) -> list[Trajectory]:
        return list(group[:keep])
