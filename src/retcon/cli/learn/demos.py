"""`retcon demos`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import DemosOverrides, RecipeName, command_line, plain_console
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling

if TYPE_CHECKING:
    from retcon.train.demos.making import Summary


def demos(
    recipe: RecipeName,
    overrides: DemosOverrides = None,
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where they go; repeating the command continues the file.")
    ] = Path("runs/demonstrations.jsonl"),
) -> None:
    """Write demonstrations for a cold start, as the recipe's [b]demos[/] section says: from a teacher, a model,
    annotated solutions or transcripts."""
    from retcon.cli.common.reading import READS
    from retcon.config.load import load_recipe
    from retcon.store.outputs import refuse_special

    refuse_special(out, "--out")
    settings = load_recipe(recipe, overrides or (), reads=READS["demos"])
    from retcon.cli.common.demonstrations import ensure_demonstrations

    kept = f"what was made is kept beside {out}; the same command makes the rest"
    with interruptible(kept), telling("writing demonstrations") as tell:
        summary = ensure_demonstrations(settings, out, tell, tell_place)
    console = plain_console()
    console.print("\n".join(_told(out, summary)))
    words = command_line("retcon", "sft", recipe, *(overrides or ()), "--demonstrations", out, "--out", "runs/sft")
    console.print(f"look: {command_line('retcon', 'show', out)}\ntry: {words}")


def _told(out: Path, summary: Summary | None) -> list[str]:
    if summary is None:
        return [f"demonstrations: {out} (there already, and not of this command)"]
    lines = [f"demonstrations: {out}", f"kept: {summary.kept}, {summary.failed} of them with a failed call"]
    lines += [f"rejected: {count}, {why}" for why, count in summary.rejected.items()]
    if summary.left_over:
        lines.append(f"left over: {summary.left_over}, more than are wanted, or than the wanted share has a place for")
    return lines
