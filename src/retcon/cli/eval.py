"""`retcon eval`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from retcon.cli.common.arguments import (
    DryRun,
    ModelOrURL,
    Out,
    command_line,
    need_training,
    plain_console,
    split_overrides,
)
from retcon.cli.common.importing import import_training
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.overriding import of_sections
from retcon.cli.common.progress import tell_line, tell_place, telling
from retcon.core.texts import is_url

if TYPE_CHECKING:
    from retcon.tasks.data.settings import FileTaskSettings


def evaluate(
    checkpoint: ModelOrURL,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="A recipe (its sections task, rollout, sandbox and evaluate matter), and changes to it.",
            show_default=False,
        ),
    ] = None,
    *,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Problems to evaluate on instead of the recipe's, given like task.path (docs/data/problems.md); may "
            "be repeated; task.columns=…, task.grader=… say how they are read and graded.",
            show_default=False,
        ),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Repair failed turns as they happen, as the recipe's [bold]repair[/] section says, or else by SAAR.",
        ),
    ] = False,
    out: Out = Path("runs/eval"),
    dry_run: DryRun = False,
) -> None:
    """Measure a checkpoint on problems that no training saw, with purification off by default."""
    from retcon.build import build_repair
    from retcon.config.load import apply_override, load_recipe
    from retcon.models.locating import locate

    name, overrides = split_overrides(words or [])
    given = [*_of_files(data, name, overrides), *overrides] if data else overrides
    served = is_url(checkpoint)
    if served:
        given = ["engine.kind=openai", f"engine.url={checkpoint}", *given]
    recipe = load_recipe(name, given)
    if repair:
        kind = "saar" if build_repair(recipe) is None else recipe.repair.kind
        recipe = apply_override(recipe, f"evaluate.repair={kind}")
    elif recipe.evaluate.repair == "none":
        for override in of_sections(overrides, ["repair"]):
            tell_line(f"{override}: without --repair an evaluation repairs nothing")
    folder = locate(recipe.model.path if served else checkpoint)
    if dry_run:
        need_training()
        from retcon.cli.common.plan import plan_evaluation

        plan_evaluation(recipe, folder, out)
        return
    if recipe.engine.in_process:
        import_training()
    from retcon.evaluate.result import read_result
    from retcon.evaluate.runner import run_evaluation

    kept = f"the problems that are measured are kept in {out}; the same command continues"
    with interruptible(kept), telling(f"evaluating {checkpoint}") as tell:
        path = run_evaluation(recipe, folder, out, on_progress=tell, on_place=tell_place)
    from retcon.report.tables import result_table, result_title, tell_cut_off

    console, result = plain_console(), read_result(path)
    console.print(result_title(result), style="bold", soft_wrap=True)
    console.print(result_table(result), soft_wrap=False)
    if said := tell_cut_off(result):
        console.print(said, style="yellow")
    console.print(f"result: {path}\ntry: {command_line('retcon', 'show', out / 'trajectories-t1.jsonl')}")


SAMPLES = 4
"""Rollouts of a problem where files are named and the number is not: sets are large, and more tell little more."""


def _of_files(paths: Sequence[str], recipe: str | None, overrides: Sequence[str]) -> list[str]:
    """What `--data` changes in a recipe: all rows of these files are evaluated on, unless it or an override says how
    many. What it says of its own data alone goes: which rows of them, and of a data set of the hub its subset and
    revision, unless what is named is what it trains or evaluates on."""
    from retcon.config.load import load_recipe
    from retcon.config.save import toml_of
    from retcon.tasks.checked import EVERY
    from retcon.tasks.data.origin import origin_of

    where = f"task.path={toml_of(paths[0])}"
    if len(paths) > 1:
        where = f"task.sources={toml_of(list(paths))}"
    keys = {"evaluate.problems": EVERY, "evaluate.samples": SAMPLES}
    given = {override.partition("=")[0].strip() for override in overrides}
    settings = load_recipe(recipe)
    given |= {f"evaluate.{key}" for key in settings.evaluate.model_fields_set}
    data: set[str] = set()
    if settings.task.kind == "file":
        task = cast("FileTaskSettings", settings.task)
        data = {task.path, task.evaluation_path, *(source.path for source in task.sources)} - {""}
    same = data.issuperset(paths) and any(origin_of(path) == "hub" for path in paths)
    own = () if not data else ("split",) if same else ("split", "subset", "revision")
    return [
        "task.kind=file", *(f'task.{key}=""' for key in own), 'task.path=""', "task.sources=[]",
        'task.evaluation_path=""', 'task.evaluation_split=""', "task.evaluation_share=1", where,
        *(f"{key}={value}" for key, value in keys.items() if key not in given),
    ]  # fmt: skip
