"""The table: what each arm's evaluation came to."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from retcon.report.pages.markup import table_of
from retcon.report.panel import Panel, Report
from retcon.report.style import COLD_START, looks
from retcon.report.summary import ABOUT, Figures, figures
from retcon.report.tables import Row, best_arms, interval_note, measured_rows, number, span


class Evaluation(Panel):
    heading = "Evaluation"
    place = 10

    def html(self, report: Report) -> str:
        compared = report.comparison
        arms = {arm: figures(runs) for arm, runs in compared.arms.items()}
        return (
            "<p>Purification is off and no training saw these problems. Failed calls are counted as they happen.</p>\n"
            f"{_table(figures([compared.cold_start]), arms)}\n"
            f'<p class="soft">{escape(interval_note(len(compared.seeds)))}</p>'
        )


def _table(cold_start: Figures, arms: Mapping[str, Figures]) -> str:
    body = "".join(_row(row, cold_start, arms, ends=ends) for row, ends in measured_rows(cold_start, arms))
    return table_of({"cold start": COLD_START, **looks(arms)}, body)


def _row(row: Row, cold_start: Figures, arms: Mapping[str, Figures], *, ends: bool) -> str:
    best = best_arms(row, arms)
    cells = [_cell(row, cold_start)] + [_cell(row, f, best=arm in best) for arm, f in arms.items()]
    label = escape(row.label).replace("  ", "&emsp;")
    end = ' class="end"' if ends else ""
    return f'<tr{end}><td title="{escape(ABOUT[row.figure])}">{label}</td>{"".join(cells)}</tr>'


def _cell(row: Row, of: Figures, *, best: bool = False) -> str:
    interval = of[row.figure]
    if interval is None:
        return "<td>–</td>"
    text = number(interval.mean, row.digits)
    if interval.low != interval.high:
        text += f' <span class="range">{span(interval, row.digits)}</span>'
    return f"<td{' class=' + chr(34) + 'best' + chr(34) if best else ''}>{text}</td>"
