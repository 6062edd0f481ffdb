"""Learning curves as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from retcon.core.errors import MissingExtra
from retcon.core.installing import how_to_install
from retcon.report.runs import Run
from retcon.runs.metrics import Metrics
from retcon.store.whole import whole_file

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Colour (hex) and matplotlib line style of an arm."""

    colour: str
    line: str


# Okabe and Ito's palette: distinguishable by colour-blind readers; the line styles by readers of grey prints.
COLD_START = LineStyle("#555555", ":")
_KNOWN = {"baseline": LineStyle("#0072B2", "--"), "saar": LineStyle("#D55E00", "-"), "roc": LineStyle("#009E73", "-.")}
_OTHERS = (LineStyle("#CC79A7", "-"), LineStyle("#E69F00", "--"), LineStyle("#56B4E9", "-."), LineStyle("#000000", ":"))


def line_styles(arms: Iterable[str]) -> dict[str, LineStyle]:
    """Return each arm's colour and line style, fixed for shipped arms."""
    others = cycle(_OTHERS)
    return {arm: _KNOWN.get(arm) or next(others) for arm in arms}


SMOOTHING = 5  # steps of the running mean


@dataclass(frozen=True, slots=True)
class Curve:
    """One picture: a metric over steps. metric: its name in metrics.jsonl. per: a metric to divide by. top: end of the
    axis, unless all values are far below (`top_of`). from_zero: whether the axis begins at 0. smooth: whether the thick
    line is a running mean. over: metric whose running sum replaces the step on the axis."""

    name: str
    metric: str
    title: str
    axis: str
    top: float | None = None
    per: str | None = None
    from_zero: bool = True
    smooth: bool = True
    over: str | None = None


CURVES = (
    Curve("pass_rate", "pass_rate", "Rollouts that pass", "share of rollouts", top=1.0),
    Curve("failed_calls_raw", "raw_failures", "Failed calls as they happened", "per rollout"),
    Curve("failed_calls_purified", "failures", "Failed calls as trained on", "per rollout"),
    Curve("sampled_tokens", "sampled_tokens", "Tokens sampled", "per rollout", per="rollouts"),
    Curve("spliced_share", "spliced_share", "Spliced tokens among those trained on", "share of tokens"),
)


def draw_curves(
    arms: Mapping[str, Sequence[Run]], out: Path, *, curves: Sequence[Curve] = CURVES, formats: Sequence[str] = ("png",)
) -> dict[Curve, Path]:
    """Write `<name>.<format>` for each curve that some run has; return the first files. Raises MissingExtra without
    matplotlib, StorageError.

    Thin lines are steps (one seed) and the band their range over seeds; thick lines are running means.
    """
    need_matplotlib()
    files: dict[Curve, Path] = {}
    for curve in curves:
        series = {arm: values for arm, runs in arms.items() if (values := steps_of(runs, curve)).size}
        if not curve.smooth:
            series = {arm: drop_partial_steps(values) for arm, values in series.items()}
        if series:
            places = {arm: places_of(arms[arm], curve, values.shape[1]) for arm, values in series.items()}
            files[curve] = draw(curve, series, list(arms), out, places=places, formats=formats)
    return files


def need_matplotlib() -> None:
    """Raise MissingExtra where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise MissingExtra(f"pictures need matplotlib: {how_to_install('report')}")


def draw(
    curve: Curve,
    series: Mapping[str, np.ndarray],
    names: Sequence[str],
    out: Path,
    *,
    places: Mapping[str, np.ndarray] | None = None,
    formats: Sequence[str] = ("png",),
    stages: Mapping[str, Sequence[tuple[str, int, int]]] = MappingProxyType({}),
    about: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Write `<name>.<format>` of one curve into `out`; return the first file. series: name to (seeds, steps), NaN where
    a step has no value. names: of all arms, so that each looks alike in every picture. places: x of each column,
    (steps,), by default the step's number. stages: each run's stages as name, first and last step, with a line at each
    change. about: texts that stand in the file, by the format's own keys (PNG: `Software`). Raises StorageError."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        # A Figure of its own, not pyplot: no global state, nothing to close.
        figure = Figure(figsize=(6.4, 3.8), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        for name, look in line_styles(names).items():
            if name not in series:
                continue
            values = series[name]
            steps = np.arange(1, values.shape[1] + 1) if places is None else places[name]
            known = ~np.isnan(values).all(0)  # such as evaluations, which not every step has
            values, steps = values[:, known], steps[known]
            least, mean, greatest = min_mean_max(values)
            if len(values) > 1:
                axes.fill_between(steps, least, greatest, color=look.colour, alpha=0.15, linewidth=0)
            else:
                axes.plot(steps, values[0], color=look.colour, alpha=0.3, linewidth=0.8)
            mean = running_mean(mean) if curve.smooth else mean
            alone = len(steps) == 1
            axes.plot(
                steps,
                mean,
                marker="o" if alone or not curve.smooth else None,
                markersize=4,
                clip_on=not alone,  # it stands on the border
                color=look.colour,
                linestyle=look.line,
                linewidth=2,
                label=escape_name(name),
            )
            for stage, first, _ in stages.get(name, ())[1:]:
                axes.axvline(first - 0.5, color=look.colour, linestyle=":", linewidth=1)
                axes.annotate(
                    stage, (first - 0.5, 1), xycoords=("data", "axes fraction"), xytext=(3, -3), fontsize=8,
                    textcoords="offset points", color=look.colour, va="top",
                )  # fmt: skip
        axes.set(xlabel=curve.over.replace("_", " ") if curve.over else "step", ylabel=curve.axis)
        axes.set_title(curve.title, loc="left", fontweight="bold")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if curve.over is not None:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            axes.xaxis.set_major_formatter("{x:,.0f}")
        else:
            axes.set_xlim(1, max(2, *(v.shape[1] for v in series.values())))
        if curve.from_zero:
            axes.set_ylim(0, top_of(curve, series))
        axes.grid(axis="y", alpha=0.25)
        axes.legend(frameon=False)
        files = [out / f"{curve.name}.{kind}" for kind in formats]
        for file, kind in zip(files, formats, strict=True):
            with whole_file(file) as whole:
                figure.savefig(whole, format=kind, metadata=dict(about))
    return files[0]


def escape_name(name: str) -> str:
    """Escape a name for matplotlib. It reads formulas between dollars, hides legends that begin with an underscore, and
    fails at invalid text, such as a folder's name may hold."""
    text = name.encode(errors="replace").decode().replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def top_of(curve: Curve, series: Mapping[str, np.ndarray]) -> float | None:
    """Return the curve's top as the axis end, or None. None, for just above the greatest value, where all values lie
    below a quarter of the top."""
    import numpy as np

    if curve.top is None or max(np.nanmax(values) for values in series.values()) < curve.top / 4:
        return None
    return curve.top


def min_mean_max(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each step's minimum, mean and maximum over seeds; values: (seeds, steps)."""
    import numpy as np

    return np.nanmin(values, 0), np.nanmean(values, 0), np.nanmax(values, 0)


def steps_of(runs: Sequence[Run], curve: Curve) -> np.ndarray:
    """Return a curve as (seeds, steps), NaN for gaps. Cut to the shortest run; empty where a run has no values."""
    import numpy as np

    rows = [[value_of(step, curve) for step in run.metrics] for run in runs]
    if not rows or any(all(v is None for v in row) for row in rows):
        return np.empty((0, 0))
    length = min(len(row) for row in rows)
    return np.array([[np.nan if v is None else v for v in row[:length]] for row in rows], dtype=np.float64)


def drop_partial_steps(values: np.ndarray) -> np.ndarray:
    """Blank the steps that only some seeds have, unless that leaves none. Runs that end with a budget are evaluated at
    different last steps, where a mean would be of one seed."""
    import numpy as np

    whole = ~np.isnan(values).any(0)
    return np.where(whole, values, np.nan) if whole.any() else values


def places_of(runs: Sequence[Run], curve: Curve, steps: int) -> np.ndarray:
    """Return where the first `steps` steps stand on the axis, (steps,): their numbers, or the mean over runs of what
    was spent until then."""
    import numpy as np

    if curve.over is None:
        return np.arange(1, steps + 1)
    spent = [[step.get(curve.over) or 0.0 for step in run.metrics[:steps]] for run in runs]
    places: np.ndarray = np.array(spent, dtype=np.float64).cumsum(1).mean(0)
    return places


def value_of(step: Metrics, curve: Curve) -> float | None:
    """Return a curve's height at a step; None if the metric or its divisor is missing."""
    value = step.get(curve.metric)
    if value is None or curve.per is None:
        return value
    per = step.get(curve.per)
    return value / per if per else None


def running_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the SMOOTHING steps around each, (T,); fewer at the ends.

    Centred, so that the line does not lag behind the steps that it smooths. Steps without a value are passed over. With
    no more than SMOOTHING steps, which would all come to about one mean, the values themselves.
    """
    import numpy as np

    half = SMOOTHING // 2 if len(values) > SMOOTHING else 0
    windows = [values[max(0, at - half) : at + half + 1] for at in range(len(values))]
    return np.array([np.nan if np.isnan(w).all() else np.nanmean(w) for w in windows])
