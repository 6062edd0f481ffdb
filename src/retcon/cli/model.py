"""The `retcon model` commands, which fetch, list and check models."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.arguments import command_line, need_training

if TYPE_CHECKING:
    from retcon.chat.checks import ChatCheck
    from retcon.models.checking import ModelCheck

model = typer.Typer(
    name="model", no_args_is_help=True, help="Fetch and check models (docs/models/models.md).", rich_markup_mode="rich"
)


@model.command("get")
def get_model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name of [bold]retcon model list[/], from the Python package registry, or ORG/NAME or "
            "ORG/NAME@REVISION of the Hugging Face hub.",
        ),
    ],
) -> None:
    """Fetch a model once, so that recipes and commands can name it."""
    need_training()
    from retcon.models.locating import fetch_model

    folder = fetch_model(name, lambda line: typer.echo(line, err=True))
    typer.echo(folder)
    typer.echo(f"try: {command_line('retcon', 'model', 'check', name)}", err=True)


@model.command("list")
def list_models() -> None:
    """List the package registry's models and which are fetched."""
    from rich.console import Console
    from rich.table import Table

    from retcon.models.locating import PACKAGED, packaged_folder

    table = Table(box=None, pad_edge=False)
    for column in ("name", "what", "licence", "to fetch", "folder"):
        table.add_column(column, overflow="fold")
    for name, known in PACKAGED.items():
        folder = packaged_folder(name)
        place = str(folder) if folder.is_dir() else "not fetched"
        table.add_row(name, known.about, known.licence, f"{known.megabytes} MB", place)
    Console().print(table)


@model.command("check")
def check_model(
    path: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or the name of a fetched model.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Load a model and test weights, tokenizer, chat template, a greedy continuation.

    Exit code 2 if it is broken, or if training would be wrong: its chat is compared with what its template renders.
    """
    need_training()
    from retcon.models.locating import locate

    folder = locate(path)  # a GGUF file that cannot be converted is refused before torch is imported
    from retcon.models.checking import check_model_folder

    checked = check_model_folder(folder)
    if as_json:
        found = asdict(checked)
        chat = found.pop("chat") or {"family": None}
        typer.echo(json.dumps({**chat, **found, "folder": str(checked.folder)}, indent=2, ensure_ascii=False))
    else:
        _print(checked)
    if not checked.trains:
        raise typer.Exit(2)


def _calls(chat: ChatCheck) -> str:
    several = "several in a turn" if chat.parallel else "one in a turn"
    history = "" if chat.append_only else "; the template drops earlier thoughts, training keeps them"
    return f"{chat.family}: read back as the template writes them, {several}{history}"


def _print(checked: ModelCheck) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from retcon.models.checking import QUESTION

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    rows = {
        "folder": checked.folder,
        "source": checked.source.get("source", "unknown"),
        "licence": checked.source.get("licence", "unknown"),
        "architecture": f"{checked.architecture}, {checked.parameters / 1e6:,.1f} M parameters",
        "tokenizer": f"{checked.vocabulary:,} tokens",
        "plain English": f"{checked.nats:.2f} nats a token",
        "calls": _calls(checked.chat) if checked.chat else "the chat template cannot be followed",
        QUESTION: checked.continuation,
    }
    for label, value in rows.items():
        table.add_row(label, Text(str(value)))
    console = Console(highlight=False)
    console.print(table)
    for warning in checked.warnings:
        typer.echo(f"warning: {warning}", err=True)
