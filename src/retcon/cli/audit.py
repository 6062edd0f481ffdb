"""`retcon audit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import Model, Out, command_line, plain_console, split_overrides
from retcon.cli.common.importing import import_training
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling

if TYPE_CHECKING:
    from retcon.config.schema import Recipe
    from retcon.core.types import Trajectory


INSTEAD = {"evaluate.problems": "--prompts", "evaluate.samples": "rl.group"}
"""Keys of an evaluation, and what an audit has for them."""


def audit(
    checkpoint: Model,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="The recipe whose credit is audited (its tasks, rollout, sandbox, repair and rl matter), and changes.",
            show_default=False,
        ),
    ] = None,
    *,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="Evaluation problems to roll out, rl.group times each.")
    ] = 24,
    calls: Annotated[int, typer.Option("--calls", min=1, help="Failed calls to replay, at most.")] = 48,
    replays: Annotated[int, typer.Option("--replays", min=1, help="Replays of each counterfactual.")] = 16,
    out: Out = Path("runs/audit"),
) -> None:
    """Replay failed calls of a model, repaired and not, and see which credit rule points the right way."""
    from retcon.build import build_limits
    from retcon.cli.common.reading import READS
    from retcon.config.load import load_recipe
    from retcon.core.errors import RecipeError
    from retcon.models.locating import locate

    name, overrides = split_overrides(words or [])
    for override in overrides:
        if (instead := INSTEAD.get(override.partition("=")[0].strip())) is not None:
            raise RecipeError(f"override '{override}': an audit has {instead} for that")
    recipe = load_recipe(name, overrides, reads=READS["audit"])
    folder = locate(checkpoint)
    if recipe.engine.in_process:
        import_training()
    from retcon.evaluate.replay.audit import RESULT, Auditing, Size, run_audit
    from retcon.report.audit import audit_sheets
    from retcon.store.whole import write_whole
    from retcon.train.objective.shaping import comparable, shaped_rewards

    def credit(recipe: Recipe, groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
        compared = [comparable(group, recipe.rl) for group in groups]
        found = recipe.rl.advantages_of_step(
            [shaped_rewards(group, recipe.rl, build_limits(recipe)) for group in compared]
        )
        known = {id(t): a for pair in zip(compared, found, strict=True) for t, a in zip(*pair, strict=True)}
        return [[known.get(id(t), 0.0) for t in group] for group in groups]

    job = Auditing(recipe, folder, out, Size(prompts, calls, replays), credit)
    kept = f"what was replayed is kept in {out}; the same command continues"
    with interruptible(kept), telling(f"replaying failed calls of {checkpoint}") as tell:
        found = run_audit(job, on_progress=tell, on_place=tell_place)
    sheets = audit_sheets(found)
    write_whole(out / "table.md", "\n".join(sheet.markdown() for sheet in sheets))
    console = plain_console()
    for sheet in sheets:
        console.print(sheet.table(), soft_wrap=False)
    console.print(f"result: {out / RESULT}\ntable: {out / 'table.md'}")
    console.print(f"try: {command_line('retcon', 'show', out / 'replays' / '0000.jsonl')}")
