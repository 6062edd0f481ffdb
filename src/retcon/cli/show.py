"""`retcon show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import refuse_idle
from retcon.core.errors import RecordError
from retcon.core.texts import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from retcon.core.types import Trajectory

LINES = 40
"""Of the list, unless more are asked for."""


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A trajectory file (JSON Lines).")],
    id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Which trajectory; the beginning of an id is enough.", show_default=False),
    ] = None,
    first_repaired: Annotated[bool, typer.Option("--first-repaired", help="Show the first that was repaired.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show the text exactly as the engine saw it, markup and all.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Lines of the list; 0 for all.", show_default=str(LINES))
    ] = None,
) -> None:
    """List the trajectories of a file, or show one before and after purification."""
    from rich.console import Console

    one = id is not None or first_repaired
    refuse_idle("--raw", raw and not one, "it is of one trajectory: name it by its ID, or say --first-repaired")
    refuse_idle("--first-repaired", first_repaired and id is not None, f"{id} is named already")
    refuse_idle("--limit", one and limit is not None, "it is of the list, and one trajectory is asked for")
    console = Console()
    if not one:
        bad = _list(console, file, LINES if limit is None else limit)
        if bad:
            raise RecordError("\n".join(bad))
        return
    from retcon.store.lookup import find

    trajectory = _first_repaired(file) if id is None else find(file, id)
    if raw:
        console.out(trajectory.text, highlight=False)
        return
    from retcon.report.transcript import show_purification, show_trajectory

    repaired = any(turn.repair is not None for turn in trajectory.turns)
    console.print((show_purification if repaired else show_trajectory)(trajectory))


def _list(console: Console, file: Path, limit: int) -> list[str]:
    """Prints the table; what is wrong with lines that could not be read."""
    from retcon.store.lookup import BAD, head

    found = head(file, limit)
    console.print(_table(found.trajectories))
    if found.more:
        console.print(f"and {found.more} more: --limit 0 lists all", style="dim")
    more = [f"and {counted(len(found.bad) - BAD, 'more line')}"] if len(found.bad) > BAD else []
    return found.bad[:BAD] + more


def _table(trajectories: list[Trajectory]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", overflow="fold")
    table.add_column("reward", justify="right")
    table.add_column("stop")
    table.add_column("turns", justify="right")
    table.add_column("failed raw", justify="right")
    table.add_column("purified", justify="right")
    table.add_column("repaired")
    others = {
        "branch of, after turn": [f"{t.branch.parent}, {t.branch.turns}" if t.branch else "" for t in trajectories],
        "selection": [t.selection or "" for t in trajectories],
    }
    others = {name: cells for name, cells in others.items() if any(cells)}
    for name in others:
        table.add_column(name)
    for t, *more in zip(trajectories, *others.values(), strict=True):
        decisions = ", ".join(turn.repair.decision for turn in t.turns if turn.repair is not None)
        good = (t.reward or 0) > 0
        reward = Text("–" if t.reward is None else f"{t.reward:g}", "green" if good else "red" if t.reward else "dim")
        numbers = [str(n) for n in (len(t.turns), t.raw_failures, t.failures)]
        table.add_row(Text(t.id), reward, t.stop, *numbers, Text(decisions, "cyan"), *map(Text, more))
    return table


def _first_repaired(file: Path) -> Trajectory:
    from retcon.report.choose import repaired
    from retcon.store.lookup import first

    if (found := first(file, repaired, having=b'"repair"')) is not None:
        return found
    raise RecordError(f"{file}: no trajectory was repaired (was purification on?)")
