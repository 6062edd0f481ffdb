"""The commands `retcon recipes` and `retcon init`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.arguments import check_useful, command_line
from retcon.core.errors import RecipeError
from retcon.store.whole import storage_errors

if TYPE_CHECKING:
    from rich.console import Console

    from retcon.config.schema import Recipe

MISSING = "Not here yet:"


@dataclass(frozen=True, slots=True)
class About:
    """Description of a recipe, from its file's first comment. what: its first line; missing: items that are not here
    yet."""

    name: str
    what: str
    missing: tuple[str, ...]

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Change:
    """A changed key. key: `section.key`. value, default: as JSON."""

    key: str
    value: str
    default: str


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A recipe, its file, or a folder of them.")
    ] = None,
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the list as in docs/training/recipes.md.")
    ] = False,
) -> None:
    """List the recipes that come with Retcon, or show one: its file, what it changes, what is not implemented yet."""
    from rich.console import Console

    from retcon.config.load import find_recipe, load_recipe

    check_useful("--markdown", markdown and name is not None, f"it is of the whole list: leave {name} out")
    shipped = about_shipped()
    if markdown:
        typer.echo(markdown_list(shipped))
        return
    console = Console(highlight=False)
    folder = [about for about in shipped if name and about.folder == name.removeprefix("recipes/").rstrip("/")]
    if name is None or folder:
        _list(console, folder or shipped)
        return
    file = find_recipe(name)
    changed = changes(load_recipe(file))  # raises for a file that is not a recipe
    _explain(console, file, about_file(name, file), changed)


TEN = 10
"""Problems that `retcon init` writes."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the files go.", show_default=".")] = Path(),
    *,
    with_examples: Annotated[
        bool, typer.Option("--examples", help="Write the folder examples/ too: tools, tasks, transcripts.")
    ] = False,
) -> None:
    """Write ten problems and a commented recipe to begin with. No file is overwritten."""
    import shutil

    from retcon.config.load import examples, find_recipe

    problems = (examples() / "own_data" / "problems.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    written = {"own.toml": find_recipe("own").read_text(encoding="utf-8"), "problems.jsonl": "".join(problems[:TEN])}
    there = [folder / name for name in (*written, *(["examples"] * with_examples)) if (folder / name).exists()]
    if there:
        raise RecipeError(f"{' and '.join(map(str, there))} exists already: choose another folder, `retcon init DIR`")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if with_examples:
            shutil.copytree(examples(), folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
    typer.echo(f"written: {', '.join(str(folder / name) for name in written)}")
    typer.echo("try:")
    if folder != Path():
        typer.echo(f"  {command_line('cd', folder)}")
    for line in ("data check problems.jsonl", "model get smollm2-135m", "train own.toml --from smollm2-135m --dry-run"):
        typer.echo(f"  retcon {line}")


def about_shipped() -> list[About]:
    """Describe every shipped recipe, those outside folders first."""
    from retcon.config.load import shipped_recipes

    found = [about_file(name, file) for name, file in shipped_recipes().items()]
    return sorted(found, key=lambda about: (about.folder, about.name))


def about_file(name: str, file: Path) -> About:
    """Describe the recipe in a file."""
    lines = list(_comment(file.read_text(encoding="utf-8-sig")))
    items: list[str] = []
    for line in lines[lines.index(MISSING) + 1 :] if MISSING in lines else ():
        if line.startswith("- "):
            items.append(line.removeprefix("- "))
        elif items and line.startswith("  "):
            items[-1] += f" {line.strip()}"
        else:
            break
    return About(name, lines[0] if lines else "", tuple(items))


def _comment(text: str) -> Iterator[str]:
    """Lines of a file's first comment, without their marks."""
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line.removeprefix("#").removeprefix(" ")


def changes(recipe: Recipe) -> list[Change]:
    """List the recipe's values that differ from the defaults. A section of another kind is compared with that kind's
    defaults; a key without a default has none to show."""
    import json

    from pydantic_core import PydanticUndefined, to_jsonable_python

    from retcon.config.schema import SECTIONS
    from retcon.config.section import PluginSection

    found = []
    for name, about in SECTIONS.items():
        section = getattr(recipe, name)
        for key, field in type(section).model_fields.items():
            chosen = issubclass(about, PluginSection) and key == about.chosen_by
            default = (about.model_fields[key] if chosen else field).get_default(call_default_factory=True)
            value = getattr(section, key)
            if value != default:
                known = () if default is PydanticUndefined else (default,)
                written = [json.dumps(to_jsonable_python(one), ensure_ascii=False) for one in (value, *known)]
                found.append(Change(f"{name}.{key}", written[0], "".join(written[1:])))
    return [*found, *_stage_changes(recipe)]


def _stage_changes(recipe: Recipe) -> Iterator[Change]:
    """Values of its stages that differ from the recipe's; those that only stages have show no default."""
    import json

    whole = recipe.model_dump(mode="json")
    for number, stage in enumerate(whole.get("stages", ()), start=1):
        for name, value in stage.items():
            if isinstance(value, dict):
                for key, own in value.items():
                    there = (json.dumps(whole[name][key], ensure_ascii=False),) if key in whole[name] else ()
                    yield Change(f"stages.{number}.{name}.{key}", json.dumps(own, ensure_ascii=False), "".join(there))
            elif value not in (0, "keep"):
                yield Change(f"stages.{number}.{name}", json.dumps(value, ensure_ascii=False), "")


def markdown_list(shipped: Sequence[About]) -> str:
    """Return the recipes as a Markdown table for a page in docs/."""
    lines = [f"| [`{about.name}`](../../recipes/{about.name}.toml) | {about.what} |" for about in shipped]
    return "\n".join(["| recipe | |", "|---|---|", *lines])


def _list(console: Console, shipped: Sequence[About]) -> None:
    from itertools import groupby

    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.HORIZONTALS, pad_edge=False, show_header=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what", overflow="fold")
    for _, group in groupby(shipped, key=lambda about: about.folder):
        for about in group:
            table.add_row(about.name, Text(about.what))
        table.add_section()
    console.print(table)
    console.print("`retcon recipes NAME` explains one", style="dim")


def _explain(console: Console, file: Path, about: About, changed: Sequence[Change]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.out(file.read_text(encoding="utf-8-sig"), highlight=False)  # as it is, to be copied
    table = Table(box=box.HORIZONTALS, pad_edge=False, title="what it changes", title_justify="left")
    table.add_column("key", no_wrap=True)
    table.add_column("here", overflow="fold")
    table.add_column("by default", overflow="fold")
    for change in changed:
        table.add_row(Text(change.key), Text(change.value), Text(change.default))
    console.print(table)
    if about.missing:
        console.print(Text("not here yet", "italic"))
        for item in about.missing:
            console.print(Text(f"  {item}"), soft_wrap=True)
    console.print(Text(f"file: {file}"), soft_wrap=True)
