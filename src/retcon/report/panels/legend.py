"""What each figure of the table is."""

from __future__ import annotations

from html import escape

from retcon.report.panel import Panel, Report
from retcon.report.summary import ABOUT


class Legend(Panel):
    heading = "What the figures are"
    place = 50

    def html(self, report: Report) -> str:
        items = "".join(f"<li><code>{escape(name)}</code>: {escape(about)}</li>" for name, about in ABOUT.items())
        return f"<ul>{items}</ul>"
