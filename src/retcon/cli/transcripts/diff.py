"""`retcon diff`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from retcon.cli.common.arguments import refuse_idle
from retcon.cli.transcripts.purify import audit_of
from retcon.core.errors import RecordError, nearest
from retcon.core.types import REPLACED, Decision

if TYPE_CHECKING:
    from retcon.core.types import Trajectory
    from retcon.report.diff import Change

Kind = Literal["repaired", "shallow", "deep", "resampled", "described", "unrepaired", "answered", "any"]
_FIRST = 5


def diff(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit of `retcon purify`, or a trajectory file.")],
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Which trajectory; the beginning of an id is enough.", show_default=False),
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help=f"Show all of them, not just the first {_FIRST}.")] = False,
    kind: Annotated[
        Kind, typer.Option("--kind", help="Which decisions to show; repaired means the first three.")
    ] = "repaired",
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="Show this many, drawn at random from the file.", show_default=False),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of that draw.", show_default="0")] = None,
) -> None:
    """Show what was replaced: each failure next to its fix, how similar they are, and why."""
    from rich.console import Console

    from retcon.report.diff import show_change

    refuse_idle("--seed", seed is not None and sample is None, "it is of a draw: say how many (--sample)")
    refuse_idle("--all", all_ and sample is not None, f"--sample {sample} shows no more than that: leave one out")
    found = _sampled(_changes(file, id, kind), sample, seed or 0) if sample else _changes(file, id, kind)
    console = Console()
    shown = more = 0
    for change in found:
        if not (all_ or sample or id) and shown == _FIRST:
            more += 1
            continue
        console.print(show_change(change))
        shown += 1
    if not shown:
        raise RecordError(_nothing(file, id, kind))
    if more:
        console.print(f"and {more} more: --all shows them", style="dim")


def _changes(file: Path, id: str | None, kind: Kind) -> Iterator[Change]:
    from retcon.report.diff import changes
    from retcon.store.lookup import holds

    decisions = {"repaired": tuple(REPLACED), "any": get_args(Decision)}.get(kind, (kind,))
    exact = id is not None and holds(file, id)
    for trajectory in _audited(file):
        if id is None or (trajectory.id == id if exact else trajectory.id.startswith(id)):
            yield from (c for c in changes(trajectory) if c.repair.decision in decisions)


def _audited(file: Path) -> Iterator[Trajectory]:
    """Raises RecordError, which names the audit beside a file that `retcon purify` wrote."""
    from retcon.store import jsonl

    try:
        yield from jsonl.read(file)
    except RecordError as error:
        audit = audit_of(file, False)
        hint = f"; the audit of {file.name} is {audit}" if audit is not None and audit.is_file() else ""
        raise RecordError(f"{error}{hint}") from None


def _sampled(found: Iterator[Change], size: int, seed: int) -> list[Change]:
    """So many of them, each set equally likely, in the file's order; memory holds no more than those."""
    import random

    draw = random.Random(seed)
    kept: list[tuple[int, Change]] = []
    for n, change in enumerate(found):
        if len(kept) < size:
            kept.append((n, change))
        elif (place := draw.randrange(n + 1)) < size:
            kept[place] = (n, change)
    return [change for _, change in sorted(kept, key=lambda pair: pair[0])]


def _nothing(file: Path, id: str | None, kind: Kind) -> str:
    from retcon.store import jsonl

    if id is None:
        return f"{file}: nothing is {kind} in it; --kind any shows what was looked at"
    ids = [t.id for t in jsonl.read(file)]
    if any(i.startswith(id) for i in ids):
        return f"{file}: nothing is {kind} in '{id}'; --kind any shows what was looked at"
    return f"{file}: no trajectory '{id}'{nearest(id, ids)}; `retcon show {file}` lists all"
