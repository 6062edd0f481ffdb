"""A repaired trajectory, as it was sampled and as it is trained on."""

from __future__ import annotations

from retcon.report.pages.markup import sides_of
from retcon.report.panel import Panel, Report


class BeforeAndAfter(Panel):
    heading = "A trajectory before and after"
    place = 30

    def html(self, report: Report) -> str:
        if report.shown is None:
            return "<p>No arm purified a trajectory that was also rewarded.</p>"
        return sides_of(report.shown)
