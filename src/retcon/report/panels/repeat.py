"""How to have all this again."""

from __future__ import annotations

from html import escape

from retcon.report.panel import Panel, Report


class Repeat(Panel):
    heading = "Repeat it"
    place = 40

    def html(self, report: Report) -> str:
        return f"<pre>{escape(chr(10).join(report.commands))}</pre>"
