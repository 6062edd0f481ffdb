"""What pages are made of: a document, pictures, trajectories. Every text that comes from a run is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources

from retcon.core.types import REPLACED, Trajectory, Turn
from retcon.report.plots import Curve
from retcon.report.style import Look

TITLE = "<title>Retcon: "
"""Of every page."""


def document(title: str, parts: Sequence[str]) -> str:
    """A whole page. title: after the name of this program. parts: HTML. Names of files that are no text are shown with
    a `?`."""
    css = resources.files("retcon.report.pages").joinpath("page.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{TITLE}{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )
    return page.encode(errors="replace").decode()


def curves_of(pictures: Mapping[Curve, bytes], seeds: int) -> str:
    """The pictures, embedded."""
    if not pictures:
        return "<p>No pictures: matplotlib was not installed.</p>"
    images = "".join(
        f'<img alt="{escape(curve.title)}, by step" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for curve, png in pictures.items()
    )
    band = "band: range over seeds" if seeds > 1 else "thin line: each step"
    return f'<div class="curves">{images}</div><p class="soft">Thick line: running mean over 5 steps; {band}.</p>'


def sides_of(trajectory: Trajectory) -> str:
    """A trajectory as it was sampled, beside what is trained on."""
    before = "".join(_before(turn) for turn in trajectory.turns)
    after = "".join(block for turn in trajectory.turns for block in blocks_of(turn))
    return (
        f'<p class="soft"><code>{escape(trajectory.id)}</code>. Red: sampled, failed, and taken out. '
        "Green: the later fix, put in its place.</p>"
        f'<div class="wide">{prompt_of(trajectory)}</div>'
        f'<div class="sides"><div><h3>As it was sampled</h3>{before}</div>'
        f"<div><h3>As it is trained on</h3>{after}</div></div>"
    )


def _before(turn: Turn) -> str:
    replaced = turn.repair is not None and turn.repair.decision in REPLACED
    attempts = turn.raw()
    return "".join(
        "".join(blocks_of(attempt, written="removed" if replaced and n < len(attempts) - 1 else ""))
        for n, attempt in enumerate(attempts)
    )


def prompt_of(trajectory: Trajectory) -> str:
    """All that the model was given before its first turn."""
    return f"<pre>{escape(''.join(s.text for s in trajectory.prompt).strip())}</pre>"


def table_of(columns: Mapping[str, Look], body: str) -> str:
    """A table whose first column holds labels. columns: the heads of the others, each with its colour. body: rows."""
    heads = "".join(
        f'<th><span class="swatch" style="background:{look.colour}"></span>{escape(name)}</th>'
        for name, look in columns.items()
    )
    return f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def blocks_of(turn: Turn, written: str = "") -> Iterator[str]:
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
