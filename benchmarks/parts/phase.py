"""A picture of where which arm ends best: a square for each setting, in its colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from retcon.report.plots import looks
from retcon.report.tables import number

LINE = 0.15
"""Of a square's height, from one arm's line to the next."""


def draw_phase(
    squares: Mapping[tuple[str, str], Mapping[str, float]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    file: Path,
) -> None:
    """squares: of each row and column that was run, every arm's figure, of which more is better; the others stay empty.
    Each lists its arms, the best one first."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    arms = list(dict.fromkeys(arm for square in squares.values() for arm in square))
    colours = {arm: look.colour for arm, look in looks(arms).items()}
    with mpl.rc_context({"font.size": 10}):
        figure = Figure(figsize=(1.0 + 2.4 * len(columns), 0.9 + 1.5 * len(rows)), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        for down, row in enumerate(rows):
            for right, column in enumerate(columns):
                place = (right + 0.5, down + 0.5)
                if (square := squares.get((row, column))) is None:
                    axes.annotate("not run", place, ha="center", va="center", color="#999999")
                    continue
                order = sorted(square, key=square.__getitem__, reverse=True)
                axes.fill_between([right, right + 1], down, down + 1, color=colours[order[0]], alpha=0.25, linewidth=0)
                first = place[1] - LINE * (len(order) - 1) / 2
                for n, arm in enumerate(order):
                    axes.annotate(
                        f"{arm}  {number(square[arm], 2)}", (place[0], first + LINE * n), ha="center",
                        va="center", color="#222222", fontweight="bold" if n == 0 else "normal",
                    )  # fmt: skip
        axes.set_xticks([n + 0.5 for n in range(len(columns))], columns)
        axes.set_yticks([n + 0.5 for n in range(len(rows))], rows)
        axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
        axes.set_title(title, loc="left", fontsize=10)
        axes.tick_params(length=0)
        for n in range(1, len(columns)):
            axes.axvline(n, color="white", linewidth=2)
        for n in range(1, len(rows)):
            axes.axhline(n, color="white", linewidth=2)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
