"""Forest plot of differences with ranges, one panel per setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from retcon.evaluate.statistics import Interval
from retcon.report.plots import line_styles

COLUMNS = 3


def draw_forest(panels: Mapping[str, Mapping[str, Interval]], title: str, file: Path) -> None:
    """panels: of each setting, every arm's difference. A filled dot: its range leaves out 0. Three panels a row."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    arms = list(dict.fromkeys(arm for panel in panels.values() for arm in panel))
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        size = (1.2 + 3.0 * columns, 0.7 + (0.6 + 0.32 * len(arms)) * rows)
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (name, panel) in zip(grid.flat, panels.items(), strict=False):
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
