"""What a panel of report.html is: one is a file in `report/panels`, and no list of them stands anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from retcon.core.registry import Registry
from retcon.core.types import Trajectory
from retcon.report.plots import Curve
from retcon.report.runs import Comparison


@dataclass(frozen=True, slots=True)
class Report:
    """What a page is made of. pictures: PNG files. shown: a repaired trajectory, None where there is none. commands:
    what repeats the run."""

    comparison: Comparison
    pictures: Mapping[Curve, bytes]
    shown: Trajectory | None
    commands: Sequence[str]


class Panel:
    """A part of the page under a heading of its own: the one subclass in a file of `report/panels`.

    place: panels come in the order of these numbers, from 1 on; those of the package are multiples of ten.
    """

    heading: ClassVar[str]
    place: ClassVar[int]

    def html(self, report: Report) -> str:
        """What stands below the heading, empty where there is nothing to say: then the heading is left out too. Every
        text that comes from a run must be escaped."""
        raise NotImplementedError


def panels() -> list[Panel]:
    """All of them, in the order of the page."""
    found = Registry("panel", "retcon.report.panels", Panel)
    return sorted((kind() for _, kind in found.all()), key=lambda panel: panel.place)
