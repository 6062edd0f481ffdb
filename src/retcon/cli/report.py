"""`retcon report`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import command_line, plain_console
from retcon.core.texts import is_url

if TYPE_CHECKING:
    from retcon.config.schema import Recipe
    from retcon.report.reading import Viewed

PAGE = "report.html"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…", help="Run folders of any kind, or of `retcon eval`; give several to compare them."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where the page goes. Default: report/ in RUN if there is only one, otherwise runs/report.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a page about runs, finished or not: curves, figures, trajectories, how to repeat them."""
    from retcon.report.pages.runs import draw_runs, runs_page
    from retcon.report.plots import need_matplotlib
    from retcon.report.reading import named, some_trajectories, view
    from retcon.store.whole import explained, write_whole

    viewed = [view(folder, name) for name, folder in named(runs).items()]
    need_matplotlib()
    out = out or (runs[0] / "report" if len(runs) == 1 else Path("runs/report"))
    recipes = {
        run.name: out / ("recipe.toml" if len(viewed) == 1 else f"recipe-{run.name.replace('/', '-')}.toml")
        for run in viewed
    }
    _refuse_foreign(out, recipes.values())
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
    pictures = draw_runs(viewed, out)
    shown = {run.name: some_trajectories(run) for run in viewed}
    repeated = [(recipes[run.name], *_repeat(run, recipes[run.name])) for run in viewed]
    commands = [line for _, _, lines in repeated for line in lines]
    page = runs_page(viewed, {curve: file.read_bytes() for curve, file in pictures.items()}, shown, commands)
    write_whole(out / PAGE, page)  # first, as it tells whose the recipes beside it are
    for file, recipe, _ in repeated:
        if recipe:
            write_whole(file, recipe)
    console = plain_console()
    for run in viewed:
        if run.steps is not None and not run.finished:
            console.print(f"{run.name}: step {len(run.metrics)} of {run.steps}, not finished")
    console.print(f"page: {out / PAGE}\npictures: {len(pictures)} PNGs beside it")


def _refuse_foreign(out: Path, recipes: Iterable[Path]) -> None:
    """Raises RecordError where something in `out` that the report would replace is of no report."""
    from retcon.core.errors import RecordError
    from retcon.report.pages.markup import is_ours

    page = out / PAGE
    found = [page] if page.is_file() and not is_ours(page) else []
    if not page.exists():
        found += [recipe for recipe in recipes if os.path.lexists(recipe)]
    if found:
        raise RecordError(f"{found[0]} is there already, and of no report: choose another --out")


def _repeat(run: Viewed, file: Path) -> tuple[str, list[str]]:
    """The run's recipe, as TOML for `file`, and commands over it; the recipe is empty where it cannot be read."""
    from pydantic import ValidationError

    from retcon import __version__
    from retcon.config.complaints import complaint
    from retcon.config.save import recipe_to_toml
    from retcon.config.schema import Recipe

    sections = {s: _without_name(s, keys) if isinstance(keys, dict) else keys for s, keys in run.recipe.items()}
    try:
        recipe = Recipe.model_validate(sections)
    except ValidationError as error:
        other = run.version and run.version != __version__
        of = f"of retcon {run.version}" if other else "not one that can be read here"
        _, why = complaint(error.errors()[0], sections)
        return "", [f"# {run.name}: the recipe in its run.json is {of}: {why}"]
    words: dict[str, Sequence[object]] = {
        "sft": ("sft", file, "--demonstrations", "DEMONSTRATIONS"),
        "dpo": ("dpo", file, "--pairs", "PAIRS", "--from", "MODEL"),
        "rl": ("train", file, "--from", "MODEL"),
        "eval": ("eval", _measured(run, recipe), file),
    }
    return recipe_to_toml(recipe), [
        f"# {run.name}: retcon {run.version or __version__}",
        command_line("retcon", *words[run.kind], "--out", f"{run.folder}-again"),
    ]


def _measured(run: Viewed, recipe: Recipe) -> str:
    """MODEL of `retcon eval`. A result names a server with its model, which is a key of the recipe; and a URL as MODEL
    is that of an OpenAI-compatible one."""
    measured = run.result.checkpoint if run.result else "MODEL"
    if not is_url(measured):
        return measured
    return str(getattr(recipe.engine, "url", "MODEL")) if recipe.engine.kind == "openai" else "MODEL"


def _without_name(section: str, keys: dict[str, object]) -> dict[str, object]:
    """`task.name` of a task set that was given to `run_rl` itself is no key of a recipe."""
    return {k: v for k, v in keys.items() if (section, k) != ("task", "name") or v == ""}
