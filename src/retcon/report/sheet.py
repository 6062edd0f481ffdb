"""A table in several formats: Markdown, CSV, LaTeX, terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "–": "--", "×": r"$\times$",
    "Δ": r"$\Delta$", "±": r"$\pm$", "−": "$-$", "≥": r"$\geq$",
}  # fmt: skip
ANY_WIDTH = 10_000
"""Characters, wider than any table."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with sections. columns: heads. sections: (title, rows of as many cells as columns). notes: below it."""

    title: str
    columns: tuple[str, ...]
    sections: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    notes: tuple[str, ...] = ()

    def parts(self, most: int) -> Iterator[Sheet]:
        """Split into sheets of at most `most` columns. The first column is in all, the notes are in the last."""
        starts = range(1, len(self.columns), most)
        for start in starts:
            own = slice(start, start + most)
            sections = tuple((title, tuple((row[0], *row[own]) for row in rows)) for title, rows in self.sections)
            notes = self.notes if start == starts[-1] else ()
            yield Sheet(self.title, (self.columns[0], *self.columns[own]), sections, notes)

    def markdown(self, *, titled: bool = True) -> str:
        """Render as Markdown, section titles as rows. titled: whether the sheet's title stands above."""
        heads = [markdown_row(self.columns), "|---" + "|---:" * (len(self.columns) - 1) + "|"]
        lines = [f"**{self.title}**", "", *heads] if titled else heads
        for title, rows in self.sections:
            lines.append(markdown_row((f"*{title}*", *[""] * (len(self.columns) - 1))))
            lines += map(markdown_row, rows)
        return "\n".join([*lines, "", *self.notes]) + "\n"

    def latex(self) -> str:
        """Render as a LaTeX tabular with booktabs' rules."""
        heads = " & ".join(_escaped(head) for head in self.columns)
        lines = [
            rf"% {self.title}",
            r"% \usepackage{booktabs}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}",
        ]
        lines += [r"\toprule", rf"{heads} \\"]
        for title, rows in self.sections:
            lines += [r"\midrule", rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\emph{{{_escaped(title)}}}}} \\"]
            lines += [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def tables(self, console: Console) -> Iterator[Table]:
        """Yield terminal tables that fit the console without folding numbers. Where not all columns fit, ranges that
        would widen a column move to lines of their own."""
        if _fits(whole := self.table(), console):
            yield whole
            return
        narrow = self._stacked()
        for most in range(max(1, len(self.columns) - 1), 0, -1):
            tables = [part.table() for part in narrow.parts(most)]
            if most == 1 or all(_fits(table, console) for table in tables):
                yield from tables
                return

    def _stacked(self) -> Sheet:
        """Put `.812 [.790–.834]` on two lines in cells longer than any half of one in their column."""
        columns = list(zip(*(row for _, rows in self.sections for row in rows), strict=True))
        widths = [max(len(line) for cell in column for line in _stacked(cell).split("\n")) for column in columns]

        def narrow(row: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(c if len(c) <= w else _stacked(c) for c, w in zip(row, widths, strict=True))

        return replace(self, sections=tuple((title, tuple(map(narrow, rows))) for title, rows in self.sections))

    def table(self) -> Table:
        """Render for a console with markup off, as names may have brackets."""
        table = Table(
            title=self.title, title_justify="left", title_style="bold", box=box.HORIZONTALS, pad_edge=False,
            caption="\n".join(self.notes), caption_justify="left",
        )  # fmt: skip
        table.add_column(self.columns[0], no_wrap=True)
        for head in self.columns[1:]:
            table.add_column(head, justify="right", overflow="fold")
        for title, rows in self.sections:
            table.add_row(Text(title, "italic dim"))
            for row in rows:
                table.add_row(*row, end_section=row is rows[-1])
        return table


def _fits(table: Table, console: Console) -> bool:
    wide = console.options.update(width=ANY_WIDTH)
    return console.measure(table, options=wide).maximum <= console.width


def _stacked(cell: str) -> str:
    """`.812 [.790–.834]` on two lines."""
    return cell.replace(" [", "\n[", 1)


def to_csv(rows: Sequence[Sequence[object]]) -> str:
    """Render rows as CSV, the first as heads; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
