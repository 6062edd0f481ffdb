"""The commands that show runs: `show`, `report` and `view`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from retcon.cli.arguments import check_useful, command_line, plain_console
from retcon.core.errors import RecordError
from retcon.core.texts import counted, is_url

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from retcon.config.schema import Recipe
    from retcon.core.types import Trajectory
    from retcon.report.runs import RunSummary
    from retcon.store.index import Query


def view(
    roots: Annotated[
        list[Path], typer.Argument(metavar="RUN|FILE|FOLDER…", help="Runs, folders of them, or trajectory files.")
    ],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any that is free.")] = 7320,
    token: Annotated[
        str, typer.Option("--token", help="In the page's address; random by default.", show_default=False)
    ] = "",
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="DIR",
            help="Write the page with all that it shows; DIR/index.html opens without a server.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Look at rollouts and curves in a browser: search, compare, and see what was repaired, kept and dropped."""
    import socket

    from aiohttp import web

    from retcon.core.errors import RecordError
    from retcon.report.view.server import Viewer, make_app, new_token

    for root in roots:
        if not root.exists():
            raise RecordError(f"{root} does not exist")
    viewer = Viewer(roots)
    if export is not None:
        from retcon.report.view.export import write_view

        for run in viewer.runs:
            run.index.update()
        count = write_view(viewer, export)
        typer.echo(f"{counted(count, 'rollout')}: open {export / 'index.html'}")
        return
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(("127.0.0.1", port))
    except OSError:
        opened.bind(("127.0.0.1", 0))
    opened.listen()  # a browser that opens the address at once waits instead of being refused
    port, token = opened.getsockname()[1], token or new_token()
    typer.echo(f"http://127.0.0.1:{port}/{token}/")
    typer.echo(f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}   then open that address")
    typer.echo("Ctrl-C ends it")
    viewer.follow()
    try:
        web.run_app(make_app(viewer, token), sock=opened, print=lambda *_: None, access_log=None)
    finally:
        viewer.close()


LINES = 40
"""Of the list, unless more are asked for."""


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A run folder, or a trajectory file (JSON Lines).")],
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Which trajectory; the beginning of an id is enough.")
    ] = None,
    *,
    first_repaired: Annotated[bool, typer.Option("--first-repaired", help="Show the first that was repaired.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Show the text exactly as the engine saw it, markup and all.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="Lines of the list; 0 for all.", show_default=str(LINES))
    ] = None,
    grep: Annotated[
        str, typer.Option("--grep", metavar="TEXT", help="With these words in question, words, code or output.")
    ] = "",
    failed: Annotated[bool, typer.Option("--failed", help="With a failed call.")] = False,
    error: Annotated[str, typer.Option("--error", metavar="TYPE", help="With this error, such as NameError.")] = "",
    step: Annotated[str, typer.Option("--step", metavar="N|N-M", help="Of this step of training, or of these.")] = "",
    group: Annotated[
        str, typer.Option("--group", metavar="ID", help="Of this task, or task/step: the group of a prompt.")
    ] = "",
    repaired: Annotated[
        str, typer.Option("--repaired", metavar="HOW", help="shallow, deep, another decision, any or none.")
    ] = "",
    verdict: Annotated[str, typer.Option("--verdict", metavar="HOW", help="right or wrong.")] = "",
    dropped: Annotated[bool, typer.Option("--dropped", help="Made in training and not trained on.")] = False,
    tree: Annotated[
        str, typer.Option("--tree", metavar="N|N-M|N-", help="With so many rollouts in its tree; 2- has sub-calls.")
    ] = "",
    sort: Annotated[str, typer.Option("--sort", metavar="KEY", help="Such as reward or -tokens, largest first.")] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Take the trajectory ID out of its file.")] = False,
    redact: Annotated[
        str, typer.Option("--redact", metavar="TEXT", help="Replace a text wherever it stands in the trajectory ID.")
    ] = "",
) -> None:
    """List a run's trajectories, or show one before and after purification."""
    from rich.console import Console

    from retcon.store.index import Query

    one = id is not None or first_repaired
    check_useful("--raw", raw and not one, "it is of one trajectory: name it by its ID, or say --first-repaired")
    check_useful("--first-repaired", first_repaired and id is not None, f"{id} is named already")
    check_useful("--limit", one and limit is not None, "it is of the list, and one trajectory is asked for")
    query = Query(
        text=grep, failed=failed, error=error, step=_bounds("--step", step), group=group, repair=repaired,
        verdict=verdict, dropped=dropped, tree=_bounds("--tree", tree), sort=sort or "id",
    )  # fmt: skip
    filtered = query != Query()
    check_useful("FILTER", one and filtered, "filters are of the list, and one trajectory is asked for")
    for option, given in (("--delete", delete), ("--redact", bool(redact))):
        check_useful(option, given and id is None, "it is of one trajectory: name it by its ID")
    if id is not None and (delete or redact):
        typer.echo(_change(file, id, redact))
        return
    console = Console()
    if not one and not filtered and not file.is_dir():
        bad = _list(console, file, LINES if limit is None else limit)
        if bad:
            raise RecordError("\n".join(bad))
        return
    if not one:
        _list_found(console, file, query, LINES if limit is None else limit)
        return
    from retcon.store.jsonl import find

    in_file = _first_repaired if id is None else lambda path: find(path, id)
    trajectory = _in_folder(file, id) if file.is_dir() else in_file(file)
    if raw:
        console.out(trajectory.text, highlight=False)
        return
    from retcon.report.transcript import show_purification, show_trajectory

    repaired_turn = any(turn.repair is not None for turn in trajectory.turns)
    console.print((show_purification if repaired_turn else show_trajectory)(trajectory))


def _bounds(option: str, text: str) -> tuple[int, int] | None:
    """Read `30`, `30-39` or `30-`. Raises typer.BadParameter."""
    from retcon.store.index import parse_range

    if text and parse_range(text) is None:
        raise typer.BadParameter(f"{text} is not a number or a range such as 30-39", param_hint=option)
    return parse_range(text)


def _change(root: Path, id: str, redact: str) -> str:
    """Delete a trajectory, or redact a text in it; say what was done."""
    from retcon.store.index import Index

    index = Index(root)
    index.update()
    number = index.number_of(id)
    if number is None:
        raise RecordError(f"{root}: no trajectory '{id}', or several match; `retcon show {root}` lists all")
    if not redact:
        index.delete(number)
        return f"{id}: deleted"
    return f"{id}: replaced {counted(index.redact(number, redact), 'time')}"


def _in_folder(folder: Path, id: str | None) -> Trajectory:
    """The trajectory with that id, else the first repaired one."""
    from retcon.core.types import REPLACED
    from retcon.store.index import Index, Query
    from retcon.store.jsonl import read_line

    index = Index(folder)
    index.update()
    if id is None:
        found = [row["id"] for how in REPLACED for row in index.rows(Query(repair=how), limit=1)]
        number = min(found, default=None)
        if number is None:
            raise RecordError(f"{folder}: no trajectory was repaired (was purification on?)")
    else:
        number = index.number_of(id)
        if number is None:
            raise RecordError(f"{folder}: no trajectory '{id}', or several match; `retcon show {folder}` lists all")
    return read_line(index.line(number), str(folder))


def _list_found(console: Console, root: Path, query: Query, limit: int) -> None:
    """Print what the index finds, then faults of the files."""
    from rich.table import Table
    from rich.text import Text

    from retcon.store.index import Index

    index = Index(root)
    index.update()
    total = index.counts(query).total
    rows = index.rows(query, limit=limit or total)
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("id", overflow="fold")
    for name in ("reward", "answer", "expected", "stop", "turns", "failed", "errors", "repaired", "selection"):
        table.add_column(name, justify="right" if name in ("reward", "turns", "failed") else "left")
    for row in rows:
        style = {"right": "green", "wrong": "red"}.get(row["verdict"], "dim")
        reward = Text("–" if row["reward"] is None else f"{row['reward']:g}", style)
        cells = [row["answer"] or "", row["expected"] or "", row["stop"], str(row["turns"]), str(row["failures"])]
        more = [row["errors"], row["repair"], row["selection"]]
        table.add_row(Text(row["name"]), reward, *(Text(c) for c in (*cells, *more)))
    console.print(table)
    if total > len(rows):
        console.print(f"and {total - len(rows):,} more: --limit 0 lists all", style="dim")
    if not total:
        console.print("no trajectory fits", style="dim")
    for problem in index.problems():
        console.print(problem, style="yellow", markup=False)


def _list(console: Console, file: Path, limit: int) -> list[str]:
    """Print the table; return faults of unreadable lines."""
    from retcon.store.jsonl import BAD, head

    found = head(file, limit)
    if not found.trajectories and not found.bad:
        raise RecordError(f"{file} is empty: there is no trajectory in it")
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
    from retcon.core.types import is_repaired
    from retcon.store.jsonl import find_first

    if (found := find_first(file, is_repaired, having=b'"repair"')) is not None:
        return found
    raise RecordError(f"{file}: no trajectory was repaired (was purification on?)")


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
        ),
    ] = None,
    panel: Annotated[
        list[str] | None, typer.Option("--panel", metavar="PATH", help="A further part, such as my_module:MY_PANEL.")
    ] = None,
) -> None:
    """Make a page about runs, finished or not: curves, figures, trajectories, how to repeat them."""
    from retcon.config.load import recipe_to_toml
    from retcon.report.page import PAGE, draw_runs, is_runs_page, panels_of, runs_page
    from retcon.report.plots import need_matplotlib
    from retcon.report.runs import some_trajectories, unique_names, view
    from retcon.store.whole import storage_errors, write_whole

    viewed = [view(folder, name) for name, folder in unique_names(runs).items()]
    need_matplotlib()
    panels = panels_of(panel or ())
    out = out or (runs[0] / "report" if len(runs) == 1 else Path("runs/report"))
    recipes = {name: out / file for name, file in _recipe_names([run.name for run in viewed]).items()}
    repeated = {run.name: _repeat_commands(run, recipes[run.name]) for run in viewed}
    if os.path.lexists(out / PAGE) and not is_runs_page(out / PAGE):
        raise RecordError(f"{out / PAGE} exists and is not a page of `retcon report`: choose another --out")
    # Checks come before anything is written.
    written = {
        file: _with_checksum(recipe_to_toml(recipe))
        for name, file in recipes.items()
        if (recipe := repeated[name][0]) is not None and _needs_writing(file, recipe)
    }
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    pictures = draw_runs(viewed, out)
    shown = {run.name: some_trajectories(run) for run in viewed}
    commands = [line for _, lines in repeated.values() for line in lines]
    links = _write_shown(viewed, shown, out)
    drawn = {curve: file.read_bytes() for curve, file in pictures.items()}
    page = runs_page(viewed, drawn, shown, commands, links, panels)
    write_whole(out / PAGE, page)
    for file, text in written.items():
        write_whole(file, text)
    console = plain_console()
    for run in viewed:
        if not run.finished:
            at = "" if run.steps is None else f"step {len(run.metrics)} of {run.steps}, "
            console.print(f"{run.name}: {at}not finished")
    console.print(f"page: {out / PAGE}\npictures: {len(pictures)} PNGs beside it")


def _write_shown(
    runs: Sequence[RunSummary], shown: Mapping[str, tuple[Trajectory | None, Sequence[Trajectory]]], out: Path
) -> dict[str, dict[str, str]]:
    """Write the trajectories that a page shows, with their siblings, as a view beside it; return links to them."""
    from retcon.report.view.export import write_view
    from retcon.report.view.server import Viewer
    from retcon.store.index import Query

    links: dict[str, dict[str, str]] = {}
    with_some = [run for run in runs if any(one is not None for one in (shown[run.name][0], *shown[run.name][1]))]
    if not with_some:
        return links
    viewer, only = Viewer([run.folder for run in with_some]), []
    for number, (run, viewed) in enumerate(zip(with_some, viewer.runs, strict=True)):
        viewed.index.update()
        first, others = shown[run.name]
        wanted: dict[int, None] = {}
        for one in (*([first] if first else []), *others):
            step = one.provenance.step
            found = Query(task=one.task, step=None if step is None else (step, step))
            wanted |= dict.fromkeys(viewed.index.numbers(found))
            links.setdefault(run.name, {})[one.id] = f"view/index.html#/one/{number}/0?{urlencode({'name': one.id})}"
        only.append(list(wanted))
    write_view(viewer, out / "view", only)
    return links


def _recipe_names(runs: Sequence[str]) -> dict[str, str]:
    """A distinct file name for each run's recipe."""
    if len(runs) == 1:
        return {runs[0]: "recipe.toml"}
    files: dict[str, str] = {}
    for run in runs:
        name = f"recipe-{run.replace('/', '-')}"
        names = chain([f"{name}.toml"], (f"{name}-{n}.toml" for n in count(2)))
        files[run] = next(free for free in names if free not in files.values())
    return files


def _with_checksum(recipe: str) -> str:
    """Put a checksum above a recipe, which shows whether it was changed since."""
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    return f"# By `retcon report`, which replaces it only as it wrote it: {digest}\n{recipe}"


def _needs_writing(file: Path, recipe: Recipe) -> bool:
    """Whether the file lacks that recipe. Raises RecordError for content that no report wrote."""
    from retcon.config.load import load_recipe, recipe_to_toml
    from retcon.core.errors import RecipeError

    if not os.path.lexists(file):
        return True
    if file.is_file():
        text = file.read_text(encoding="utf-8", errors="replace")
        if text == _with_checksum(text.partition("\n")[2]):
            return True
        with suppress(RecipeError):
            there = load_recipe(file)
            if there == recipe:
                return False
            if text == recipe_to_toml(there):  # as earlier versions wrote it
                return True
    raise RecordError(f"{file} exists and was not written by a report: choose another --out")


def _repeat_commands(run: RunSummary, file: Path) -> tuple[Recipe | None, list[str]]:
    """The run's recipe, for `file`, and commands over it; None where it cannot be read."""
    from pydantic import ValidationError

    from retcon import __version__
    from retcon.config.load import explain_error
    from retcon.config.schema import Recipe
    from retcon.report.runs import recipe_sections

    sections = recipe_sections(run.recipe)
    try:
        recipe = Recipe.model_validate(sections)
    except ValidationError as error:
        other = run.version and run.version != __version__
        of = f"of retcon {run.version}" if other else "not one that can be read here"
        _, why = explain_error(error.errors()[0], sections)
        return None, [f"# {run.name}: the recipe in its run.json is {of}: {why}"]
    words: dict[str, Sequence[object]] = {
        "sft": ("sft", file, "--demonstrations", "DEMONSTRATIONS"),
        "dpo": ("dpo", file, "--pairs", "PAIRS", "--from", run.start or "MODEL"),
        "rl": ("train", file, "--from", run.start or "MODEL"),
        "eval": ("eval", _model_argument(run, recipe), file),
    }
    return recipe, [
        f"# {run.name}: retcon {run.version or __version__}",
        command_line("retcon", *words[run.kind], "--out", f"{run.folder}-again"),
    ]


def _model_argument(run: RunSummary, recipe: Recipe) -> str:
    """The MODEL argument of `retcon eval`. A result names a server with its model, which is a key of the recipe; a URL
    as MODEL means an OpenAI-compatible server."""
    measured = run.result.checkpoint if run.result else "MODEL"
    if not is_url(measured):
        return measured
    return str(getattr(recipe.engine, "url", "MODEL")) if recipe.engine.kind == "openai" else "MODEL"
