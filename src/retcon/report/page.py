"""HTML pages about runs: one file each, which opens from disk without a network."""

from __future__ import annotations

import base64
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from retcon.core.errors import RecordError, reraise_as
from retcon.core.registry import InstanceRegistry
from retcon.core.texts import counted
from retcon.core.types import REPLACED, Trajectory, Turn
from retcon.evaluate.result import PASS_AT, Result, Setting
from retcon.evaluate.statistics import over_problems
from retcon.report.comparison import HELD_OUT
from retcon.report.plots import COLD_START, CURVES, Curve, LineStyle, draw, line_styles, need_matplotlib, value_of
from retcon.report.runs import Comparison, RunSummary
from retcon.report.tables import (
    ABOUT,
    Figures,
    Row,
    best_arms,
    cell,
    figures,
    interval_note,
    measured_rows,
    number,
    span,
)

TITLE = "<title>Retcon: "
"""Of every page."""


def document(title: str, parts: Sequence[str]) -> str:
    """Return a whole page. title: after the program's name. parts: HTML. File names that are not valid text are shown
    with a `?`."""
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{TITLE}{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )
    return page.encode(errors="replace").decode()


def curves_of(pictures: Mapping[Curve, bytes], seeds: int) -> str:
    """Return HTML with the pictures embedded."""
    if not pictures:
        return "<p>No pictures: matplotlib was not installed.</p>"
    images = "".join(
        f'<img alt="{escape(curve.title)}, by step" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for curve, png in pictures.items()
    )
    band = "band: range over seeds" if seeds > 1 else "thin line: each step"
    return f'<div class="curves">{images}</div><p class="soft">Thick line: running mean over 5 steps; {band}.</p>'


def sides_of(trajectory: Trajectory, link: str = "") -> str:
    """Show a trajectory as sampled beside what is trained on. link: to it in a view."""
    before = "".join(_sampled_blocks(turn) for turn in trajectory.turns)
    after = "".join(block for turn in trajectory.turns for block in blocks_of(turn))
    return (
        f'<p class="soft">{_link_to(trajectory, link)}. Red: sampled, failed, and taken out. '
        "Green: the later fix, put in its place.</p>"
        f'<div class="wide">{prompt_of(trajectory)}</div>'
        f'<div class="sides"><div><h3>As it was sampled</h3>{before}</div>'
        f"<div><h3>As it is trained on</h3>{after}</div></div>"
    )


def _link_to(trajectory: Trajectory, link: str) -> str:
    name = f"<code>{escape(trajectory.id)}</code>"
    return f'<a href="{escape(link)}">{name}</a>' if link else name


def _sampled_blocks(turn: Turn) -> str:
    replaced = turn.repair is not None and turn.repair.decision in REPLACED
    attempts = turn.raw()
    return "".join(
        "".join(blocks_of(attempt, written="removed" if replaced and n < len(attempts) - 1 else ""))
        for n, attempt in enumerate(attempts)
    )


def prompt_of(trajectory: Trajectory) -> str:
    """Return the prompt as HTML."""
    return f"<pre>{escape(''.join(s.text for s in trajectory.prompt).strip())}</pre>"


def table_of(columns: Mapping[str, LineStyle], body: str) -> str:
    """Return a table whose first column holds labels. columns: heads of the others with their colours. body: rows."""
    heads = "".join(
        f'<th><span class="swatch" style="background:{look.colour}"></span>{escape(name)}</th>'
        for name, look in columns.items()
    )
    return f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def blocks_of(turn: Turn, written: str = "") -> Iterator[str]:
    """Yield an HTML block per text, without the template's markup."""
    statuses = iter(o.status for o in turn.observations if o.text)  # an empty observation has no segment
    for segment in turn.segments:
        if segment.kind == "observation":
            kind = "observation" if next(statuses, "ok") == "ok" else "failed"
        elif segment.kind in ("sampled", "spliced"):
            kind = written or segment.kind
        else:
            continue
        text = segment.text.strip("\n")
        if text:
            yield f'<pre class="{kind}">{escape(text)}</pre>'


@dataclass(frozen=True, slots=True)
class Report:
    """Content of the quickstart's page. pictures: PNG files. shown: a repaired trajectory."""

    comparison: Comparison
    pictures: Mapping[Curve, bytes]
    shown: Trajectory | None
    commands: Sequence[str]


def comparison_page(report: Report) -> str:
    """Return the HTML page of a quickstart. Texts from runs are escaped, pictures embedded."""
    compared = report.comparison
    cold, arms = figures([compared.cold_start]), {arm: figures(runs) for arm, runs in compared.arms.items()}
    names, seeds = ", ".join(arms), len(compared.seeds)
    body = "".join(_figure_row(row, cold, arms, ends=ends) for row, ends in measured_rows(cold, arms))
    legend = "".join(f"<li><code>{escape(name)}</code>: {escape(about)}</li>" for name, about in ABOUT.items())
    parts = [
        "<h1>What purification changes</h1>",
        f'<p class="soft">{escape(names)}: trained from one cold start with {seeds} '
        f"seed{'s' if seeds > 1 else ''} each, in {compared.seconds / 60:.1f} minutes.</p>",
        "<h2>Evaluation</h2>",
        "<p>Purification is off and no training saw these problems. Failed calls are counted as they happen.</p>",
        table_of({"cold start": COLD_START, **line_styles(arms)}, body),
        f'<p class="soft">{escape(interval_note(seeds))}</p>',
        "<h2>Learning curves</h2>",
        "<p>Of the rollouts that training made. Where an arm is purified, a failed call may be gone from what is "
        "trained on and from what the reward sees: compare arms by the calls as they happened, and by the table.</p>",
        curves_of(report.pictures, seeds),
        "<h2>A trajectory before and after</h2>",
        sides_of(report.shown) if report.shown else "<p>No arm purified a trajectory that was also rewarded.</p>",
        "<h2>Repeat it</h2>",
        f"<pre>{escape(chr(10).join(report.commands))}</pre>",
        "<h2>What the figures are</h2>",
        f"<ul>{legend}</ul>",
    ]
    return document(names, parts)


def _figure_row(row: Row, cold_start: Figures, arms: Mapping[str, Figures], *, ends: bool) -> str:
    best = best_arms(row, arms)
    cells = [_figure_cell(row, cold_start)] + [_figure_cell(row, f, best=arm in best) for arm, f in arms.items()]
    label = escape(row.label).replace("  ", "&emsp;")
    end = ' class="end"' if ends else ""
    return f'<tr{end}><td title="{escape(ABOUT[row.figure])}">{label}</td>{"".join(cells)}</tr>'


def _figure_cell(row: Row, of: Figures, *, best: bool = False) -> str:
    interval = of[row.figure]
    if interval is None:
        return "<td>–</td>"
    text = number(interval.mean, row.digits)
    if interval.low != interval.high:
        text += f' <span class="range">{span(interval, row.digits)}</span>'
    return f'<td class="best">{text}</td>' if best else f"<td>{text}</td>"


ALL = (
    Curve("held_out", HELD_OUT, "Held-out problems", "pass@1", top=1.0, smooth=False),
    Curve("held_out_failed_calls", "eval_failed_calls", "Failed calls, held-out problems", "per rollout", smooth=False),
    Curve("held_out_first_tries", "eval_first_try_failure_rate", "First tries that fail, held-out problems",
          "share of first tries", smooth=False),
    Curve("held_out_tokens", "eval_tokens", "Tokens sampled, held-out problems", "per rollout", smooth=False),
    Curve("reward", "reward", "Reward", "mean", from_zero=False),
    *CURVES,
    Curve("response_tokens", "response_tokens", "Length of a response", "tokens"),
    Curve("same_reward", "same_reward", "Groups that teach nothing", "share of groups", top=1.0),
    Curve("kl", "kl", "KL to the policy that sampled", "nats a token", from_zero=False),
    Curve("entropy", "entropy_estimate", "Entropy, estimated", "nats a token"),
    Curve("loss", "loss", "Loss", "nats", from_zero=False),
    Curve("accuracy", "accuracy", "Pairs whose margin is positive", "share of pairs", top=1.0),
    Curve("margin", "margin", "Margin", "nats", from_zero=False),
    Curve("grad_norm", "grad_norm", "Norm of the gradient", ""),
    Curve("tokens_per_second", "tokens_per_second", "Speed", "tokens a second"),
)  # fmt: skip
ZERO_SAYS = ("pass_rate", "raw_failures", HELD_OUT, "eval_failed_calls")
"""Metrics that are drawn even where all values are 0."""
LATE = 10
"""Last steps that a final figure is the mean of."""
FIGURES = (
    ("reward", "reward", 3),
    ("pass_rate", "rollouts that pass", 3),
    ("raw_failures", "failed calls a rollout", 2),
    ("response_tokens", "tokens of a response", 0),
    ("loss", "loss", 4),
    ("accuracy", "pairs with a positive margin", 3),
    ("tokens_per_second", "tokens a second", 0),
)
"""(metric, label, digits)."""
FIRST = "<h2>Runs</h2>"
"""The first heading of a page of runs, and of no other."""
PAGE = "report.html"
MADE_BY = {"Software": "retcon report"}
"""PNG text that marks pictures of `retcon report`."""
KINDS = {"sft": "supervised", "dpo": "preferences", "rl": "reinforcement learning", "eval": "evaluation"}


def draw_runs(runs: Sequence[RunSummary], out: Path) -> dict[Curve, Path]:
    """Write `<name>.png` of every curve that some run has. Raises MissingExtra; RecordError, before anything is
    written, for a picture that is there without such a page; StorageError."""
    need_matplotlib()
    drawn: dict[Curve, dict[str, np.ndarray]] = {}
    for curve in ALL:
        series = {run.name: values for run in runs if (values := _values(run, curve)) is not None}
        if series:
            drawn[curve] = series
    for file in (out / f"{curve.name}.png" for curve in drawn):
        made_here = file.is_file() and MADE_BY["Software"].encode() in file.read_bytes()[:1000]
        if os.path.lexists(file) and not made_here and not is_runs_page(out / PAGE):
            raise RecordError(f"{file} exists and was not written by a report: choose another --out")
    names, stages = [run.name for run in runs], {run.name: run.stages for run in runs}
    return {curve: draw(curve, series, names, out, stages=stages, about=MADE_BY) for curve, series in drawn.items()}


def _values(run: RunSummary, curve: Curve) -> np.ndarray | None:
    """(1, steps), NaN where a step has none; None where no step has one."""
    if curve.metric == "loss" and run.kind == "rl":
        return None  # its size and sign follow the advantages: a curve would mislead
    found = np.full((1, len(run.metrics)), np.nan)
    for n, step in enumerate(run.metrics):
        if (value := value_of(step, curve)) is not None:
            found[0, n] = value
    known = found[~np.isnan(found)]
    return found if known.size and (known.any() or curve.metric in ZERO_SAYS) else None


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a page of runs: a heading and its HTML.

    html: makes it from the runs, "" for none; it escapes their texts (`html.escape`).
    """

    name: str
    title: str
    html: Callable[[Sequence[RunSummary]], str]


PANELS = InstanceRegistry("panel", RecordError, base=Panel)


def panels_of(names: Sequence[str]) -> list[Panel]:
    """Return the shipped and installed panels, then those named. Raises RecordError."""
    return list(dict.fromkeys([*PANELS.all(), *map(PANELS.find, names)]))


def runs_page(
    runs: Sequence[RunSummary],
    pictures: Mapping[Curve, bytes],
    shown: Mapping[str, tuple[Trajectory | None, Sequence[Trajectory]]],
    commands: Sequence[str],
    links: Mapping[str, Mapping[str, str]] | None = None,
    panels: Sequence[Panel] = (),
) -> str:
    """Return the whole page; texts from runs are escaped. pictures: PNGs. shown: run to `some_trajectories`. commands:
    what repeats the runs. links: run to the links of trajectories, by id. Raises RecordError for a panel that fails."""
    going = [run for run in runs if not run.finished]
    title = ", ".join(run.name for run in runs)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">Made {escape(time.strftime("%Y-%m-%d %H:%M"))}.'
        + (f" Not finished then: {escape(', '.join(run.name for run in going))}." if going else "")
        + "</p>",
        FIRST,
        _runs_table(runs),
    ]
    for panel in panels:
        with reraise_as(RecordError, f"panel '{panel.name}'"):
            if part := panel.html(runs):
                parts += [f"<h2>{escape(panel.title)}</h2>", part]
    if any(run.metrics for run in runs):
        parts += ["<h2>Curves</h2>", curves_of(pictures, 1)]
    for name, (first, others) in shown.items():
        if first is None and not others:
            continue
        of = f" of {escape(name)}" if len(runs) > 1 else ""
        parts.append(f"<h2>Trajectories{of}</h2>")
        at = (links or {}).get(name, {})
        if at:
            parts.append('<p class="soft">Links open a trajectory among its siblings, without a server; all of them: '
                         f"<code>retcon view {escape(name)}</code>.</p>")  # fmt: skip
        if first is not None:
            parts += ["<h3>Repaired: before and after</h3>", sides_of(first, at.get(first.id, ""))]
        parts += [_trajectory_block(trajectory, at.get(trajectory.id, "")) for trajectory in others]
    parts += ["<h2>Repeat it</h2>", f"<pre>{escape(chr(10).join(commands))}</pre>"]
    return document(title, parts)


def is_runs_page(file: Path) -> bool:
    """Whether `runs_page` of this version or an earlier one wrote the file."""
    text = file.read_bytes() if file.is_file() else b""
    return TITLE.encode() in text[:1000] and text[text.find(b"<h2>") :].startswith(FIRST.encode())


def _runs_table(runs: Sequence[RunSummary]) -> str:
    rows: list[tuple[str, list[str]]] = [
        ("kind", [KINDS[run.kind] for run in runs]),
        ("model", [run.start or "–" for run in runs]),
        ("tasks", [_tasks(run) for run in runs]),
        ("steps", ["–" if run.steps is None else f"{len(run.metrics):,} of {run.steps:,}" for run in runs]),
        ("stages", [", ".join(f"{name} {first}–{last}" for name, first, last in run.stages) or "–" for run in runs]),
    ]
    rows += [
        (f"{label}, last {LATE} steps", [_recent(run, name, digits) for run in runs]) for name, label, digits in FIGURES
    ]
    rows += [
        ("pass@1 on held-out problems, last", [_last(run, HELD_OUT, 3) for run in runs]),
        ("wall minutes", [_minutes(run.last("wall_s")) for run in runs]),
        ("CPU minutes", [_minutes(run.last("cpu_s")) for run in runs]),
    ]
    # Below the table, as their length would make it wider than a small screen.
    places = "<br>".join(escape(f"{run.name}: {place}") for run in runs for place in run.places)
    return f'{_rows(runs, rows)}<p class="soft">{places}</p>'


def _rows(runs: Sequence[RunSummary], rows: Sequence[tuple[str, list[str]]]) -> str:
    return _table(runs, [(label, cells) for label, cells in rows if any(c != "–" for c in cells)])


def _evaluations(runs: Sequence[RunSummary]) -> str:
    evaluated = [run for run in runs if run.result is not None]
    if not evaluated:
        return ""
    rows: list[tuple[str, list[str]]] = []
    by_sampling = [_by_sampling(run.result) for run in evaluated if run.result]
    for sampled in dict.fromkeys(key for settings in by_sampling for key in settings):
        found = [settings.get(sampled) for settings in by_sampling]
        at = f"T = {sampled[0]:g}, top-p {sampled[1]:g}"
        for k in PASS_AT:
            values = [s.passes(k) if s is not None else [] for s in found]
            if any(values):
                rows.append((f"pass@{k}, {at}", [cell(over_problems(v) if v else None, 3) for v in values]))
        calls = [s.per_problem(lambda p: p.failed_calls) if s is not None else [] for s in found]
        rows.append((f"failed calls, {at}", [cell(over_problems(v) if v else None, 2) for v in calls]))
        sets = {frozenset(p.task for p in s.problems) for s in found if s is not None}
        differ = ", not the same" if len(sets) > 1 else ""
        rows.append((f"problems{differ}, {at}", ["–" if s is None else f"{len(s.problems):,}" for s in found]))
    note = '<p class="soft">Ranges: 95 %, bootstrap over problems.</p>'
    return _table(evaluated, rows) + note


EVALUATION = Panel("evaluation", "Evaluation", _evaluations)


def _by_sampling(result: Result) -> dict[tuple[float, float, int], Setting]:
    """By temperature, top-p and a counter of equal ones, as a setting's name does not hold them."""
    found: dict[tuple[float, float, int], Setting] = {}
    seen: Counter[tuple[float, float]] = Counter()
    for setting in result.settings.values():
        at = (setting.temperature, setting.top_p)
        found[*at, seen[at]] = setting
        seen[at] += 1
    return found


def _table(runs: Sequence[RunSummary], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    body = "".join(
        f"<tr><td>{escape(label)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for label, cells in rows
    )
    return table_of(line_styles(run.name for run in runs), body)


def _trajectory_block(trajectory: Trajectory, link: str) -> str:
    good = (trajectory.reward or 0) > 0
    blocks = "".join(block for turn in trajectory.turns for block in blocks_of(turn))
    return (
        f"<h3>{'Passed' if good else 'Failed'}</h3>"
        f'<p class="soft">{_link_to(trajectory, link)}, reward {trajectory.reward:g}, stop {trajectory.stop}, '
        f"{counted(trajectory.calls, 'call')}, {trajectory.failures} failed.</p>{prompt_of(trajectory)}{blocks}"
    )


def _tasks(run: RunSummary) -> str:
    about = run.recipe.get("task", {})
    if run.kind in ("sft", "dpo") or not about:
        return "–"
    sources = [str(s.get("path", s)) if isinstance(s, dict) else str(s) for s in about.get("sources", ())]
    paths = [about.get("path") or "", *sources]
    return ", ".join(Path(str(p)).name for p in paths if p) or str(about.get("name") or about.get("kind", "–"))


def _recent(run: RunSummary, metric: str, digits: int) -> str:
    if metric == "loss" and run.kind == "rl":
        return "–"
    values = [v for step in run.metrics[-LATE:] if (v := step.get(metric)) is not None]
    return f"{sum(values) / len(values):,.{digits}f}" if values else "–"


def _last(run: RunSummary, metric: str, digits: int) -> str:
    """Value at the last step that has one, as not every step has an evaluation."""
    known = [value for step in run.metrics if (value := step.get(metric)) is not None]
    return f"{known[-1]:,.{digits}f}" if known else "–"


def _minutes(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds / 60:.1f}"
