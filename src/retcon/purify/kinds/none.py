"""No repair: failures stay as they happened."""

from __future__ import annotations

from retcon.config.schema import RepairSection


class NoRepair(RepairSection):
    """`kind = "none"`."""

    def build(self) -> None:
        return None
