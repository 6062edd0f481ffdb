"""Tables of comparisons, evaluations and audits: Markdown, CSV, LaTeX, terminal."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from retcon.core.texts import counted
from retcon.evaluate.card import EFFECT, PairedResults, as_text
from retcon.evaluate.result import PASS_AT, K, Result, Setting
from retcon.evaluate.statistics import Interval, exactly, over_problems, over_seeds, share_interval
from retcon.report.plots import COLD_START, line_styles
from retcon.report.runs import Comparison, Run
from retcon.store.whole import write_whole

if TYPE_CHECKING:
    from retcon.evaluate.audit import Audit, Verdict

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
        widths = [
            max(len(line) for cell in column for line in _broken_at_brackets(cell).split("\n")) for column in columns
        ]

        def narrow(row: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(c if len(c) <= w else _broken_at_brackets(c) for c, w in zip(row, widths, strict=True))

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


def _broken_at_brackets(cell: str) -> str:
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


LAST_STEPS = 10
FEW_SAMPLES = 4

Figures = dict[str, Interval | None]
"""Name of a figure to its estimate, None where it was not measured."""

ABOUT = {
    "pass1_t1": "pass@1 at T = 1, top-p 1; purification off, problems that no training saw",
    "pass4_t1": "unbiased pass@4, same setting; where problems have samples enough, pass8_t1 instead",
    "pass8_t1": "unbiased pass@8, same setting",
    "pass1": "pass@1 at T = 1 and the second setting's top-p (.6)",
    "pass8": "unbiased pass@8, same setting",
    "failed_calls_t1": "raw failed calls per trajectory at T = 1, top-p 1",
    "failed_calls": "raw failed calls per trajectory in the second setting",
    "tokens": "tokens sampled per trajectory at T = 1, top-p 1",
    "rollouts": "rollouts made for training; of the cold start, the teacher's demonstrations",
    "wall_s": "wall seconds of training; of the cold start, without writing the demonstrations",
    "cpu_s": "CPU seconds of training, tool calls included; of the cold start as above",
    "train_failed_calls_raw": f"failed calls per rollout as they happened, last {LAST_STEPS} steps of training",
    "train_failed_calls": f"failed calls per rollout as trained on (purified), last {LAST_STEPS} steps of training",
}
"""What each figure is. Intervals are 95 %: Student's t over seeds, or with one run a bootstrap over problems."""


def summarize(comparison: Comparison) -> dict[str, object]:
    """Return the whole summary, ready to be written as JSON."""
    return {
        "cold_start": figures([comparison.cold_start]),
        "arms": {arm: figures(runs) for arm, runs in comparison.arms.items()},
        "seeds": comparison.seeds,
        "seconds": round(comparison.seconds, 1),
        "about": ABOUT,
    }


def write_summary(path: Path, comparison: Comparison) -> None:
    """Write summary.json. Raises StorageError where it cannot be written."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(summarize(comparison)), indent=1) + b"\n")


def figures(runs: Sequence[Run]) -> Figures:
    """Return the figures of one arm's runs, one a seed."""
    return {
        "pass1_t1": _evaluated(runs, "t1", lambda s: s.passes(1), ceiling=1.0),
        "pass4_t1": _evaluated(runs, "t1", _pass_at_few, ceiling=1.0),
        "pass8_t1": _evaluated(runs, "t1", lambda s: s.passes(K), ceiling=1.0),
        "pass1": _evaluated(runs, "top_p", lambda s: s.passes(1), ceiling=1.0),
        "pass8": _evaluated(runs, "top_p", lambda s: s.passes(K), ceiling=1.0),
        "failed_calls_t1": _evaluated(runs, "t1", lambda s: s.per_problem(lambda p: p.failed_calls)),
        "failed_calls": _evaluated(runs, "top_p", lambda s: s.per_problem(lambda p: p.failed_calls)),
        "tokens": _evaluated(runs, "t1", lambda s: s.per_problem(lambda p: p.tokens)),
        "rollouts": _measured(runs, lambda run: run.rollouts),
        "wall_s": _measured(runs, lambda run: run.last("wall_s")),
        "cpu_s": _measured(runs, lambda run: run.last("cpu_s")),
        "train_failed_calls_raw": _measured(runs, lambda run: _at_the_end(run, "raw_failures")),
        "train_failed_calls": _measured(runs, lambda run: _at_the_end(run, "failures")),
    }


def _pass_at_few(setting: Setting) -> list[float]:
    """pass@4 where no problem has samples enough for pass@8."""
    return [] if setting.passes(K) else setting.passes(FEW_SAMPLES)


def _evaluated(
    runs: Sequence[Run], setting: str, values: Callable[[Setting], list[float]], *, ceiling: float = float("inf")
) -> Interval | None:
    """`values`: one a problem. One run: bootstrap over its problems; more: t over the runs' means."""
    if any(setting not in run.result.settings for run in runs):
        return None
    per_run = [values(run.result.settings[setting]) for run in runs]
    if not all(per_run):
        return None
    if len(per_run) == 1:
        return over_problems(per_run[0])
    return over_seeds([statistics.fmean(v) for v in per_run], floor=0.0, ceiling=ceiling)


def _measured(runs: Sequence[Run], value: Callable[[Run], float | None]) -> Interval | None:
    """`value`: one a run. One run: as it is; more: t over runs."""
    known = [v for run in runs if (v := value(run)) is not None]
    if not known or len(known) < len(runs):
        return None
    return exactly(known[0]) if len(known) == 1 else over_seeds(known, floor=0.0)


def _at_the_end(run: Run, name: str) -> float | None:
    """Mean over the last steps that have it."""
    values = [v for step in run.metrics[-LAST_STEPS:] if (v := step.get(name)) is not None]
    return statistics.fmean(values) if values else None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Args:
        better: sign of what is better, 0 for costs.
        brief: shown in the terminal, not only on the page.
    """

    figure: str
    label: str
    digits: int
    better: int
    brief: bool = False


ROWS = (
    Row("pass1_t1", "pass@1, T = 1", 3, 1, brief=True),
    Row("pass4_t1", "pass@4, T = 1", 3, 1, brief=True),
    Row("pass8_t1", "pass@8, T = 1", 3, 1, brief=True),
    Row("pass1", "pass@1, top-p", 3, 1),
    Row("pass8", "pass@8, top-p", 3, 1),
    Row("failed_calls_t1", "failed calls, T = 1", 2, -1, brief=True),
    Row("failed_calls", "failed calls, top-p", 2, -1),
    Row("tokens", "tokens, T = 1", 0, -1, brief=True),
    Row("train_failed_calls_raw", "failed in training, raw", 2, -1),
    Row("train_failed_calls", "  as trained on", 2, 0),
    Row("rollouts", "training: rollouts", 0, 0),
    Row("cpu_s", "training: CPU seconds", 0, 0, brief=True),
    Row("wall_s", "training: wall seconds", 0, 0),
)


def cell(interval: Interval | None, digits: int) -> str:
    """Format as `.812 [.790–.834]`; without uncertainty the mean alone, unmeasured a dash."""
    if interval is None:
        return "–"
    mean = number(interval.mean, digits)
    return mean if interval.low == interval.high else f"{mean} [{span(interval, digits)}]"


def stacked(interval: Interval | None, digits: int) -> str:
    """Format as `cell` does, the brackets on a second line. Brackets that only repeat the mean are left out."""
    mean, _, brackets = cell(interval, digits).partition(" ")
    return mean if brackets in ("", f"[{mean}–{mean}]") else f"{mean}\n{brackets}"


def span(interval: Interval, digits: int) -> str:
    """Format as `.790–.834`."""
    return f"{number(interval.low, digits)}–{number(interval.high, digits)}"


def number(value: float, digits: int) -> str:
    """Format as `.812`, `-.031`, `1.000` or `7,680`: no zero before the point, no negative zero."""
    sign, text = "-" * (round(value, digits) < 0), f"{abs(value):,.{digits}f}"
    return sign + (text.removeprefix("0") if text.startswith("0.") else text)


def best_arms(row: Row, arms: Mapping[str, Figures]) -> set[str]:
    """Return all arms with the best mean, significant or not; empty where nothing is compared."""
    known = {arm: interval.mean for arm, figures in arms.items() if (interval := figures[row.figure]) is not None}
    if not row.better or len(known) < 2 or len(set(known.values())) == 1:
        return set()
    best = max(row.better * mean for mean in known.values())
    return {arm for arm, mean in known.items() if row.better * mean == best}


def comparison_table(cold_start: Figures, arms: Mapping[str, Figures], *, seeds: int) -> Table:
    """Return the brief rows, arms across, the best means in bold. With more than two arms, ranges stand below the
    means, so that three fit a terminal of 80 columns."""
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
    for arm, look in line_styles(arms).items():
        table.add_column(arm, justify="right", overflow="fold", header_style=f"bold {look.colour}")
    for row in (row for row, _ in measured_rows(cold_start, arms) if row.brief):
        best = best_arms(row, arms)
        cells = [
            Text(show(figures[row.figure], row.digits), style="bold" if arm in best else "")
            for arm, figures in arms.items()
        ]
        table.add_row(row.label, show(cold_start[row.figure], row.digits), *cells)
    return table


CUT_OFF_SHARE = 0.1
"""Share of cut-off rollouts above which a warning is shown."""
SECTION_ENDS = ("pass8", "tokens", "train_failed_calls")


def measured_rows(cold_start: Figures, arms: Mapping[str, Figures]) -> list[tuple[Row, bool]]:
    """Return the measured rows, each with whether it ends a section."""
    found: list[tuple[Row, bool]] = []
    for row in ROWS:
        ends = row.figure in SECTION_ENDS
        if any(figures[row.figure] is not None for figures in (cold_start, *arms.values())):
            found.append((row, ends))
        elif ends and found:
            found[-1] = found[-1][0], True
    return found


def interval_note(seeds: int) -> str:
    """Explain where the brackets come from."""
    if seeds > 1:
        return f"Ranges: 95 %, Student's t over {seeds} seeds (cold start: bootstrap over problems). Bold: best mean."
    return "Ranges: 95 %, bootstrap over problems; one seed says nothing about other seeds. Bold: best mean."


def result_title(result: Result) -> str:
    """Name what was measured, on its own line as paths are long."""
    repair = result.recipe.get("evaluate", {}).get("repair", "none")
    return f"{result.checkpoint}, {'purification off' if repair == 'none' else f'failed turns repaired ({repair})'}"


def result_table(result: Result) -> Table:
    """Return one evaluation, settings across, to fit a terminal of 80 columns."""
    from retcon.tasks.data.rows import short_name  # slow to import

    table = Table(box=box.HORIZONTALS, pad_edge=False)
    table.add_column("", no_wrap=True)
    settings = list(result.settings.values())
    for setting in settings:
        table.add_column(f"T = {setting.temperature:g}, top-p {setting.top_p:g}", justify="right", overflow="fold")
    figures: list[tuple[str, Callable[[Setting], list[float]], int]] = [
        *((f"pass@{k}", lambda s, k=k: s.passes(k), 3) for k in PASS_AT),
        ("majority", lambda s: [v for p in s.problems if (v := p.majority) is not None and p.samples > 1], 3),
        ("failed calls", lambda s: s.per_problem(lambda p: p.failed_calls), 2),
        ("tokens", lambda s: s.per_problem(lambda p: p.tokens), 1),
    ]
    for label, values, digits in figures:
        if any(known := [values(s) for s in settings]):
            over = share_interval if digits == 3 else over_problems
            table.add_row(label, *(cell(over(v) if v else None, digits) for v in known))
    sources: Any = result.recipe.get("task", {}).get("sources", ())
    for name in dict.fromkeys(short_name(source["path"]) for source in sources if len(sources) > 1):
        own = [[p for p in s.problems if p.samples and p.task.startswith(f"{name}/")] for s in settings]
        passed = [share_interval([p.passed / p.samples for p in problems]) if problems else None for problems in own]
        table.add_row(f"pass@1, {name} ({len(own[0])})", *(cell(interval, 3) for interval in passed))
    table.add_row("problems", *(str(len(s.problems)) for s in settings))
    table.add_row("lost", *(str(s.lost) for s in settings))
    return table


def describe_cut_off(result: Result) -> str:
    """Warn if more than CUT_OFF_SHARE of rollouts ran out of tokens. An answer that is cut off does not measure a model
    that thinks at length."""
    stops = Counter[str]()
    for setting in result.settings.values():
        stops.update(setting.stops)
    if stops["length"] <= CUT_OFF_SHARE * stops.total():
        return ""
    limit = result.recipe.get("rollout", {}).get("max_tokens", "?")
    return (
        f"{stops['length']:,} of {stops.total():,} rollouts ended for want of tokens, and an answer that is cut off is "
        f"wrong: raise rollout.max_tokens (here {limit}) where the model takes more (docs/data/problems.md)"
    )


def comparison_sheet(found: PairedResults, names: tuple[str, str]) -> Sheet:
    """Tabulate a comparison in three columns, with what it can show."""
    rows = [
        (figure, _short(a), _short(b), _with_limits(difference)) for figure, (a, b, difference) in found.figures.items()
    ]
    right = sum(figure.startswith(("avg@", "pass@", "majority")) for figure in found.figures)
    sections = (("right", tuple(rows[:right])), ("a rollout", tuple(rows[right:])))
    rate = found.figures["avg@k"][2]
    notes = [
        f"{found.problems} problems in both, {found.left_out} in one alone; better at {found.better}, worse at "
        f"{found.worse}. Differences: second less first, 95 %, Student's t over problems.",
        "avg@k: " + ("the difference is beyond chance." if rate.low > 0 or rate.high < 0 else "no difference shows.")
        + _power(found),
        *(f"differs: {key}: {_brief(a)} | {_brief(b)}" for key, (a, b) in found.protocol.items()),
    ]  # fmt: skip
    return Sheet(found.name, ("", *names, "difference"), sections, tuple(notes))


def _power(found: PairedResults) -> str:
    """How many more problems would show a difference of EFFECT."""
    if found.needed is None:
        return " The rates never differ, so the number of problems that would show one is unknown."
    more = found.needed - found.problems
    points = f"{100 * EFFECT:g} points"
    if more <= 0:
        return f" These problems would show {points} in four of five such comparisons."
    return (
        f" {points} would show in four of five such comparisons with {more:,} more problems ({found.needed:,} in all)."
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _signed(value: float) -> str:
    return "+" * (value >= 0) + _short(value)


def _with_limits(difference: Interval) -> str:
    """The mean with its interval, which a single problem lacks."""
    mean = _signed(difference.mean)
    if math.isinf(difference.high):
        return mean
    return f"{mean} [{_signed(difference.low)}–{_signed(difference.high)}]"


def _brief(value: object) -> str:
    return f"{as_text(value) or 'none':.120}"


WAYS = {
    "fresh": "a fresh try from the history before it",
    "raw": "raw: after the failed call",
    "fixed": "fixed: after what SAAR put in its place",
    "raw - fresh": "what the failed call costs: raw − fresh",
    "fixed - fresh": "what the repair brings: fixed − fresh",
}


def audit_sheets(audit: Audit) -> list[Sheet]:
    """Tabulate the chances to pass and what each credit rule was worth."""
    size, repaired = audit.size, [one for one in audit.calls if one.fixed is not None]
    whole = sum(one.of_failure is not None and one.of_fix is not None for one in repaired)
    lost = f" and that have replays of each (left out: {len(repaired) - whole})" if whole < len(repaired) else ""
    title = f"{len(audit.calls)} failed calls, {size.replays} replays of each counterfactual"
    passing = tuple((label, cell(audit.chances[name], 3)) for name, label in WAYS.items())
    return [
        Sheet(
            title,
            ("chance to pass", "mean"),
            ((f"the {whole} of them that SAAR repaired{lost}", passing),),
        ),
        Sheet(
            "Did the credit point the right way?",
            ("rule", "right / wrong / no sign", "right of signs", "gain"),
            tuple(
                (on, tuple(_row(one) for one in audit.verdicts if one.on == on))
                for on in dict.fromkeys(one.on for one in audit.verdicts)
            ),
            (
                "Counted where the tokens made a difference in the replays. Gain: sign × difference in the chance to "
                "pass, mean over all.",
                f"Brackets: 95 % intervals, bootstrap over {len({one.task for one in audit.calls})} problems. "
                f"{counted(audit.rollouts, 'rollout')}, {audit.failed} with a failed call; "
                f"{counted(audit.lost, 'replay')} lost to faults.",
            ),
        ),
    ]


def _row(one: Verdict) -> tuple[str, ...]:
    return (one.rule, f"{one.right} / {one.wrong} / {one.silent}", cell(one.share, 2), cell(one.gain, 3))
