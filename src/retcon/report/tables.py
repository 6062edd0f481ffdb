"""The comparison as a table in the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from retcon.evaluate.result import PASS_AT, Result, Setting
from retcon.evaluate.statistics import Interval, over_problems
from retcon.report.style import COLD_START, looks
from retcon.report.summary import Figures
from retcon.tasks.data.rows import short_name


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. better: the sign of what is better, 0 for costs that are only told."""

    figure: str
    label: str
    digits: int
    better: int


ROWS = (
    Row("pass1_t1", "pass@1, T = 1", 3, 1),
    Row("pass4_t1", "pass@4, T = 1", 3, 1),
    Row("pass8_t1", "pass@8, T = 1", 3, 1),
    Row("pass1", "pass@1, top-p", 3, 1),
    Row("pass8", "pass@8, top-p", 3, 1),
    Row("failed_calls_t1", "failed calls, T = 1", 2, -1),
    Row("failed_calls", "failed calls, top-p", 2, -1),
    Row("tokens", "tokens, T = 1", 0, -1),
    Row("train_failed_calls_raw", "failed in training, raw", 2, -1),
    Row("train_failed_calls", "  as trained on", 2, 0),
    Row("rollouts", "training: rollouts", 0, 0),
    Row("cpu_s", "  CPU seconds", 0, 0),
    Row("wall_s", "  wall seconds", 0, 0),
)


def cell(interval: Interval | None, digits: int) -> str:
    """`.812 [.790–.834]`; the mean alone where no uncertainty is claimed; a dash where nothing was measured."""
    if interval is None:
        return "–"
    mean = number(interval.mean, digits)
    return mean if interval.low == interval.high else f"{mean} [{span(interval, digits)}]"


def stacked(interval: Interval | None, digits: int) -> str:
    """The same, the brackets on a line of their own; none where both ends read as the mean does."""
    mean, _, brackets = cell(interval, digits).partition(" ")
    return mean if brackets in ("", f"[{mean}–{mean}]") else f"{mean}\n{brackets}"


def span(interval: Interval, digits: int) -> str:
    """`.790–.834`."""
    return f"{number(interval.low, digits)}–{number(interval.high, digits)}"


def number(value: float, digits: int) -> str:
    """`.812`, `-.031`, `1.000`, `7,680`: no zero before the point, and no zero below zero."""
    sign, text = "-" * (round(value, digits) < 0), f"{abs(value):,.{digits}f}"
    return sign + (text.removeprefix("0") if text.startswith("0.") else text)


def best_arms(row: Row, arms: Mapping[str, Figures]) -> set[str]:
    """All arms with the best mean; none where nothing is to be compared. No claim that the difference is real."""
    known = {arm: interval.mean for arm, figures in arms.items() if (interval := figures[row.figure]) is not None}
    if not row.better or len(known) < 2 or len(set(known.values())) == 1:
        return set()
    best = max(row.better * mean for mean in known.values())
    return {arm for arm, mean in known.items() if row.better * mean == best}


def comparison_table(cold_start: Figures, arms: Mapping[str, Figures], *, seeds: int) -> Table:
    """Figures down, arms across; the best mean of each row in bold. More than two arms have their ranges below
    the means, so that three fit a terminal of 80 columns."""
    table = Table(
        title="Evaluation with purification off, on problems that no training saw",
        title_justify="left",
        title_style="bold",
        box=box.HORIZONTALS,
        pad_edge=False,
        padding=(0, 0 if len(arms) > 2 else 1),
    )
    show = stacked if len(arms) > 2 else cell
    table.caption = interval_note(seeds)
    table.caption_justify = "left"
    table.add_column("", no_wrap=True)
    table.add_column("cold start", justify="right", overflow="fold", header_style=COLD_START.colour)
    for arm, look in looks(arms).items():
        table.add_column(arm, justify="right", overflow="fold", header_style=f"bold {look.colour}")
    for row, ends in measured_rows(cold_start, arms):
        best = best_arms(row, arms)
        cells = [
            Text(show(figures[row.figure], row.digits), style="bold" if arm in best else "")
            for arm, figures in arms.items()
        ]
        table.add_row(row.label, show(cold_start[row.figure], row.digits), *cells, end_section=ends)
    return table


FEW = 0.1
"""Share of rollouts that may be cut off without being told."""
SECTION_ENDS = ("pass8", "tokens", "train_failed_calls")


def measured_rows(cold_start: Figures, arms: Mapping[str, Figures]) -> list[tuple[Row, bool]]:
    """The rows in which something was measured, and whether a section ends with each."""
    found: list[tuple[Row, bool]] = []
    for row in ROWS:
        ends = row.figure in SECTION_ENDS
        if any(figures[row.figure] is not None for figures in (cold_start, *arms.values())):
            found.append((row, ends))
        elif ends and found:
            found[-1] = found[-1][0], True
    return found


def interval_note(seeds: int) -> str:
    """Where the brackets come from."""
    if seeds > 1:
        return f"Ranges: 95 %, Student's t over {seeds} seeds (cold start: bootstrap over problems). Bold: best mean."
    return "Ranges: 95 %, bootstrap over problems; one seed says nothing about other seeds. Bold: best mean."


def result_title(result: Result) -> str:
    """What was measured, and how: a line of its own, as paths are longer than the table is wide."""
    repair = result.recipe.get("evaluate", {}).get("repair", "none")
    return f"{result.checkpoint}, {'purification off' if repair == 'none' else f'failed turns repaired ({repair})'}"


def result_table(result: Result) -> Table:
    """One evaluation: figures down, settings across, so that it fits a terminal of 80 columns."""
    table = Table(box=box.HORIZONTALS, pad_edge=False)
    table.add_column("", no_wrap=True)
    settings = list(result.settings.values())
    for setting in settings:
        table.add_column(f"T = {setting.temperature:g}, top-p {setting.top_p:g}", justify="right", overflow="fold")
    figures: list[tuple[str, Callable[[Setting], list[float]], int]] = [
        *((f"pass@{k}", lambda s, k=k: s.passes(k), 3) for k in PASS_AT),
        ("failed calls", lambda s: s.per_problem(lambda p: p.failed_calls), 2),
        ("tokens", lambda s: s.per_problem(lambda p: p.tokens), 1),
    ]
    for label, values, digits in figures:
        if any(known := [values(s) for s in settings]):
            table.add_row(label, *(cell(over_problems(v) if v else None, digits) for v in known))
    sources: Any = result.recipe.get("task", {}).get("sources", ())
    for name in dict.fromkeys(short_name(source["path"]) for source in sources if len(sources) > 1):
        own = [[p for p in s.problems if p.samples and p.task.startswith(f"{name}/")] for s in settings]
        passed = [over_problems([p.passed / p.samples for p in problems]) if problems else None for problems in own]
        table.add_row(f"pass@1, {name} ({len(own[0])})", *(cell(interval, 3) for interval in passed))
    table.add_row("problems", *(str(len(s.problems)) for s in settings))
    table.add_row("lost", *(str(s.lost) for s in settings))
    return table


def tell_cut_off(result: Result) -> str:
    """What to say where more than a FEW rollouts ended for want of tokens, "" where they did not: a model that thinks
    at length is not measured by what is cut off."""
    stops = Counter[str]()
    for setting in result.settings.values():
        stops.update(setting.stops)
    if stops["length"] <= FEW * stops.total():
        return ""
    limit = result.recipe.get("rollout", {}).get("max_tokens", "?")
    return (
        f"{stops['length']:,} of {stops.total():,} rollouts ended for want of tokens, and an answer that is cut off is "
        f"wrong: raise rollout.max_tokens (here {limit}) where the model takes more (docs/data/problems.md)"
    )
