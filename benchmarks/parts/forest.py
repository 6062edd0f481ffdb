"""Forest plot of differences with ranges, one panel per setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retcon.evaluate.statistics import Interval
from retcon.report.plots import line_styles

COLUMNS = 3


def draw_forest(panels: Mapping[str, Mapping[str, Interval]], title: str, file: Path) -> None:
    """panels: of each setting, every arm's difference. A filled dot: its range leaves out 0. Three panels a row, which
    has a line for each of its arms."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    named = list(panels.items())
    rows = [named[start : start + columns] for start in range(0, len(named), columns)]
    lines = [list(dict.fromkeys(arm for _, panel in row for arm in panel)) for row in rows]
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        heights = [0.6 + 0.32 * len(arms) for arms in lines]
        size = (1.2 + 3.0 * columns, 0.7 + sum(heights))
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        grid = figure.subplots(len(rows), columns, sharex=True, sharey="row", squeeze=False, height_ratios=heights)
        for axes, (name, panel), arms in zip(
            grid.flat, named, [arms for row, arms in zip(rows, lines, strict=True) for _ in row], strict=False
        ):
            axes.set_title(name, fontsize=10)
            axes.axvline(0, color="#888888", linewidth=1)
            for arm, look in line_styles(arms).items():
                if (one := panel.get(arm)) is None:
                    continue
                place = len(arms) - 1 - arms.index(arm)
                axes.plot([one.low, one.high], [place, place], color=look.colour, linewidth=2)
                sure = one.low > 0 or one.high < 0
                axes.plot(one.mean, place, "o", color=look.colour, markerfacecolor=look.colour if sure else "white")
            axes.set_yticks(range(len(arms)), list(reversed(arms)))
            axes.set_ylim(-0.6, len(arms) - 0.4)
        for axes in list(grid.flat)[len(panels) :]:
            axes.set_visible(False)
        figure.supxlabel(title, fontsize=10)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
