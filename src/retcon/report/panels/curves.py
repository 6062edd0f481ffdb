"""The learning curves."""

from __future__ import annotations

from retcon.report.pages.markup import curves_of
from retcon.report.panel import Panel, Report


class Curves(Panel):
    heading = "Learning curves"
    place = 20

    def html(self, report: Report) -> str:
        return f"{ABOUT}\n{curves_of(report.pictures, len(report.comparison.seeds))}"


ABOUT = (
    "<p>Of the rollouts that training made. Where an arm is purified, a failed call may be gone from what is "
    "trained on and from what the reward sees: compare arms by the calls as they happened, and by the table.</p>"
)
