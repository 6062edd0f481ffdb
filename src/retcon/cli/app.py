"""The `retcon` command. Each command has a file of its own and imports what it needs when it runs."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from typing import Annotated

import typer

from retcon import __version__
from retcon.cli.arguments import Interrupted
from retcon.cli.ask import ask
from retcon.cli.data import data, export
from retcon.cli.doctor import doctor
from retcon.cli.eval import audit, difficulty, evaluate, regrade
from retcon.cli.experiments import compare, quickstart, reproduce
from retcon.cli.learn import demos, dpo, sft, train
from retcon.cli.model import model
from retcon.cli.recipes import init, recipes
from retcon.cli.sandbox import sandbox
from retcon.cli.serve_agent import serve_agent
from retcon.cli.show import report, show
from retcon.cli.transcripts import diff, purify
from retcon.core.errors import RetconError

DEBUG = "RETCON_DEBUG"

app = typer.Typer(
    name="retcon",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"retcon {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", envvar=DEBUG, help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Agentic RL for models that write and run Python, without learning from the mistakes they repair themselves."""
    os.environ[DEBUG] = "1" * debug  # 0 and false of the environment are no


app.command("quickstart")(quickstart)
app.command("init")(init)
app.command("demos")(demos)
app.command("sft")(sft)
app.command("dpo")(dpo)
app.command("train")(train)
app.command("eval")(evaluate)
app.command("compare")(compare)
app.command("reproduce")(reproduce)
app.command("difficulty")(difficulty)
app.command("audit")(audit)
app.command("ask")(ask)
app.command("serve-agent")(serve_agent)
app.command("report")(report)
app.command("recipes")(recipes)
app.command("show")(show)
app.command("regrade")(regrade)
app.command("purify")(purify)
app.command("diff")(diff)
app.command("doctor")(doctor)
data.command("export")(export)
app.add_typer(data)
app.add_typer(model)
app.add_typer(sandbox)


def main() -> None:
    """Runs the command. Errors that Retcon knows, and what the system says of a file, are one message and exit code 2;
    an interrupt is exit code 130."""
    # Torch's threads otherwise spin while they wait for each other, which on busy cores takes several times as long. To
    # be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.getLogger("retcon").addHandler(_Lines())
    logging.getLogger("retcon").setLevel(logging.INFO)
    warnings.showwarning = _warn  # type: ignore[assignment]  # takes the rest as it comes
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As standard error is: a terminal that is not in UTF-8, or a file's name that is no text, ends no command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="retcon")
    except RetconError as error:
        if os.environ.get(DEBUG):
            raise
        _say(str(error), style="red")
        sys.exit(2)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # of no file by name where standard output goes to one
        if os.environ.get(DEBUG) or not (full or error.filename):
            raise
        _say(f"{error}{': make room and run the same command again' if full else ''}", style="red")
        sys.exit(2)
    except Interrupted as interrupt:
        _say(str(interrupt), style="yellow")
        sys.exit(130)


class _Lines(logging.Handler):
    """What Retcon logs, as plain lines; through sys.stderr, as `_warn`."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(record.getMessage(), err=True)


def _warn(message: Warning | str, *_: object) -> None:
    """One line, without the line of source that Python would show. Through sys.stderr, which a bar on the terminal
    redirects to above itself."""
    typer.echo(f"warning: {message}", err=True)


def _say(message: str, *, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    label = "error: " if style == "red" else "stopped: "
    console = Console(stderr=True)
    # Whole lines when it is no terminal: paths in a log must not be broken.
    console.print(Text(label, f"bold {style}") + Text(message, style), soft_wrap=not console.is_terminal)
