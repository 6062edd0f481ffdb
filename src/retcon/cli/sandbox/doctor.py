"""`retcon sandbox doctor`: what this machine can enforce around programs, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from retcon.sandbox.doctor import Probe


def sandbox_doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Say which tiers are available here, why the others are not, with measurements and what to install or enable."""
    from retcon.sandbox.doctor import Probe, advice, look, probe_tiers

    machine = look()
    tiers = probe_tiers()
    best = next((found for found in tiers.values() if found.tier), Probe(None, problem=tiers["rlimits"].problem))
    told = advice(machine, best)
    if as_json:
        import json

        probes = {name: asdict(found) for name, found in tiers.items()}
        typer.echo(
            json.dumps({"machine": asdict(machine), "tiers": probes, "best": best.tier, "advice": told}, indent=1)
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, found in tiers.items():
        for label, text in sandbox_rows(name, found):
            table.add_row(label, text)
    bounded = best.tier is not None and not best.no_cgroup
    table.add_row("cgroup v2", mark(bounded, "the kernel bounds a call's memory over all its processes"))
    console = Console()
    console.print(table)
    print_advice(console, told)


def sandbox_rows(label: str, found: Probe) -> list[tuple[str, str]]:
    """Rows of a table: what a probe found."""
    from rich.markup import escape

    if found.tier is None:
        return [(label, f"[red]✗[/] {escape(found.problem)}")]
    speed = f"{found.calls_per_second:.0f} calls/s with one worker, fork to end {found.fork_ms:.1f} ms"
    return [
        (label, f"[green]✓[/] tier {found.tier}: {speed}"),
        ("", mark(found.network, "no network for calls")),
        ("", mark(found.files, "no writing outside a call's scratch folder")),
        ("", mark(found.own_user, "calls run without your rights")),
        *(("", mark(False, escape(f"left open in {line}"))) for line in found.unprotected),
    ]


def mark(good: bool, text: str) -> str:
    return f"[green]✓[/] {text}" if good else f"[yellow]–[/] {text}"


def print_advice(console: Console, advice: Sequence[str]) -> None:
    console.print("\n[bold]to do[/]" if advice else "\n[green]all is well[/]")
    for line in advice:
        console.print(f"  {line}", markup=False, highlight=False)
