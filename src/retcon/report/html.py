"""report.html: one file that opens from disk and needs no network."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from retcon.core.types import Trajectory, Turn
from retcon.report.plots import Curve
from retcon.report.runs import Comparison
from retcon.report.style import COLD_START, looks
from retcon.report.summary import ABOUT, Figures, figures
from retcon.report.tables import ROWS, SECTION_ENDS, Row, best_arm, interval_note, number, span
from retcon.store.whole import write_whole


def write_page(
    path: Path,
    comparison: Comparison,
    pictures: Mapping[Curve, Path],
    shown: Trajectory | None,
    commands: Sequence[str],
) -> None:
    """Writes the page. pictures: PNG files, embedded. shown: a repaired trajectory, None where there is none.
    commands: what repeats the run. Raises StorageError where it cannot be written.
    """
    text = page(comparison, {c: p.read_bytes() for c, p in pictures.items()}, shown, commands)
    write_whole(path, text)


def page(
    comparison: Comparison, pictures: Mapping[Curve, bytes], shown: Trajectory | None, commands: Sequence[str]
) -> str:
    """The whole page. Every text that comes from a run is escaped."""
    arms = {arm: figures(runs) for arm, runs in comparison.arms.items()}
    seeds = len(comparison.seeds)
    parts = [
        "<h1>What purification changes</h1>",
        f'<p class="soft">{escape(", ".join(arms))}: trained from one cold start with {seeds} '
        f"seed{'s' if seeds > 1 else ''} each, in {comparison.seconds / 60:.1f} minutes.</p>",
        "<h2>Evaluation</h2>",
        "<p>Purification is off and no training saw these problems. Failed calls are counted as they happen.</p>",
        _table(figures([comparison.cold_start]), arms),
        f'<p class="soft">{escape(interval_note(seeds))}</p>',
        "<h2>Learning curves</h2>",
        "<p>Of the rollouts that training made. Where an arm is purified, a failed call may be gone from what is "
        "trained on and from what the reward sees: compare arms by the calls as they happened, and by the table.</p>",
        _curves(pictures, seeds),
        "<h2>A trajectory before and after</h2>",
        _sides(shown) if shown else "<p>No arm purified a trajectory that was also rewarded.</p>",
        "<h2>Repeat it</h2>",
        f"<pre>{escape(chr(10).join(commands))}</pre>",
        "<h2>What the figures are</h2>",
        "<ul>" + "".join(f"<li><code>{escape(k)}</code>: {escape(v)}</li>" for k, v in ABOUT.items()) + "</ul>",
    ]
    css = resources.files("retcon.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Retcon: {escape(', '.join(arms))}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _table(cold_start: Figures, arms: Mapping[str, Figures]) -> str:
    heads = [("cold start", COLD_START), *looks(arms).items()]
    header = "".join(
        f'<th><span class="swatch" style="background:{look.colour}"></span>{escape(name)}</th>' for name, look in heads
    )
    body = "".join(_row(row, cold_start, arms) for row in ROWS)
    return f'<div class="wide"><table><thead><tr><th></th>{header}</tr></thead><tbody>{body}</tbody></table></div>'


def _row(row: Row, cold_start: Figures, arms: Mapping[str, Figures]) -> str:
    best = best_arm(row, arms)
    cells = [_cell(row, cold_start)] + [_cell(row, f, best=arm == best) for arm, f in arms.items()]
    label = escape(row.label).replace("  ", "&emsp;")
    end = ' class="end"' if row.figure in SECTION_ENDS else ""
    return f'<tr{end}><td title="{escape(ABOUT[row.figure])}">{label}</td>{"".join(cells)}</tr>'


def _cell(row: Row, of: Figures, *, best: bool = False) -> str:
    interval = of[row.figure]
    if interval is None:
        return "<td>–</td>"
    text = number(interval.mean, row.digits)
    if interval.low != interval.high:
        text += f' <span class="range">{span(interval, row.digits)}</span>'
    return f"<td{' class=' + chr(34) + 'best' + chr(34) if best else ''}>{text}</td>"


def _curves(pictures: Mapping[Curve, bytes], seeds: int) -> str:
    if not pictures:
        return "<p>No pictures: matplotlib was not installed.</p>"
    images = "".join(
        f'<img alt="{escape(curve.title)}, by step" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for curve, png in pictures.items()
    )
    band = "band: range over seeds" if seeds > 1 else "thin line: each step"
    return f'<div class="curves">{images}</div><p class="soft">Thick line: running mean over 5 steps; {band}.</p>'


def _sides(trajectory: Trajectory) -> str:
    question = f"<pre>{escape(''.join(s.text for s in trajectory.prompt).strip())}</pre>"
    before = "".join(_before(turn) for turn in trajectory.turns)
    after = "".join(_after(turn) for turn in trajectory.turns)
    return (
        f'<p class="soft"><code>{escape(trajectory.id)}</code>. Red: sampled, failed, and taken out. '
        "Green: the later fix, put in its place.</p>"
        f'<div class="wide">{question}</div><div class="sides"><div><h3>As it was sampled</h3>{before}</div>'
        f"<div><h3>As it is trained on</h3>{after}</div></div>"
    )


def _before(turn: Turn) -> str:
    replaced = turn.repair is not None and turn.repair.decision in ("shallow", "deep")
    attempts = turn.raw()
    return "".join(
        "".join(_blocks(attempt, written="removed" if replaced and n < len(attempts) - 1 else ""))
        for n, attempt in enumerate(attempts)
    )


def _after(turn: Turn) -> str:
    return "".join(_blocks(turn))


def _blocks(turn: Turn, written: str = "") -> Iterator[str]:
    """What the model wrote and what the tools answered, one block each; the template's glue is left out."""
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
