"""The `retcon` command, which imports each subcommand when it is called."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from copy import copy
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from retcon import __version__
from retcon.core.errors import Interrupted, RetconError

DEBUG = "RETCON_DEBUG"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "quickstart": (
        "experiments:quickstart",
        "Train a small tool-using agent with and without purification, and compare. Repeat the command to continue.",
    ),
    "init": ("recipes:init", "Write ten problems and a commented recipe to begin with. No file is overwritten."),
    "demos": (
        "learn:demos",
        "Write demonstrations for a cold start by the recipe's [b]demos[/] section: from a "
        "teacher, a model, annotated solutions or transcripts.",
    ),
    "sft": (
        "learn:sft",
        "Train on a teacher's demonstrations (a cold start) or your own transcripts.",
    ),
    "dpo": ("learn:dpo", "Train by direct preference optimisation on failed calls and their fixes."),
    "train": (
        "learn:train",
        "Train a checkpoint by reinforcement learning, with or without purification.",
    ),
    "eval": (
        "eval:evaluate",
        "Measure models on benchmarks or your own problems. Purification is off by default.",
    ),
    "eval-compare": (
        "eval:eval_compare",
        "Compare two evaluations problem by problem: pass rates, tokens, calls, failed calls, time and cost.",
    ),
    "benchmarks": ("eval:benchmarks", "List the standard benchmarks that `retcon eval` knows by name."),
    "compare": (
        "experiments:compare",
        "Train recipes from one cold start and compare them fairly. Repeat the command to continue.",
    ),
    "reproduce": (
        "experiments:reproduce",
        "Reproduce a paper's tables and figures in miniature, beside its own. Repeat the command to continue.",
    ),
    "difficulty": (
        "eval:difficulty",
        "Measure pass rates of training tasks, by which select.pass_rates selects.",
    ),
    "audit": (
        "eval:audit",
        "Replay a model's failed calls, repaired and not, to judge credit rules.",
    ),
    "ask": ("ask:ask", "Ask a model that runs programs, and watch its turns and repairs."),
    "serve-agent": (
        "serve_agent:serve_agent",
        "Serve a model behind OpenAI's API: it runs programs, repairs failed calls, and records what it says.",
    ),
    "report": (
        "show:report",
        "Make a page about runs, finished or not: curves, figures, trajectories, how to repeat them.",
    ),
    "recipes": (
        "recipes:recipes",
        "List the recipes that come with Retcon, or show one: its file, what it changes, what is not implemented yet.",
    ),
    "view": (
        "show:view",
        "Look at rollouts and curves in a browser: search, compare, and see what was repaired, kept and dropped.",
    ),
    "show": ("show:show", "List a run's trajectories, or show one before and after purification."),
    "regrade": (
        "eval:regrade",
        "Score stored rollouts again, with another grader or a corrected one; the old files stay as they are.",
    ),
    "purify": (
        "transcripts:purify",
        "Remove failed calls that the agent fixed itself from transcripts. All else stays as it is.",
    ),
    "diff": (
        "transcripts:diff",
        "Show what was replaced: each failure next to its fix, how similar they are, and why.",
    ),
    "doctor": (
        "doctor:doctor",
        "Show what this machine has and lacks: packages, cores, memory, protection of the sandbox.",
    ),
    "data": ("data:data", "Inspect the problems that a run will train on."),
    "model": ("model:model", "Fetch and check models (docs/models/models.md)."),
    "sandbox": ("sandbox:sandbox", "Run untrusted Python: as a service, or one file."),
}
"""Each command: its module and function (or group) in this package, and its line in the help."""


class _Commands(Mapping[str, Any]):
    """Commands by name, each imported on access."""

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = COMMANDS[name][0].partition(":")
        found = getattr(import_module(f"retcon.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            return typer.main.get_group(found)
        single = typer.Typer(add_completion=False)
        single.command(name)(found)
        return typer.main.get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class LazyGroup(typer.core.TyperGroup):
    """Command group with lazy imports; its help comes from `COMMANDS`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed = copy(self)
        listed.commands = {name: typer.core.TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}
        super(LazyGroup, listed).format_help(ctx, formatter)


app = typer.Typer(
    name="retcon",
    cls=LazyGroup,
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
    """Agentic RL for models that write, run and repair Python."""
    os.environ[DEBUG] = "1" * debug  # 0 and false of the environment are no


def main() -> None:
    """Run the command. Errors that Retcon knows, and the system's errors about files, become one message and exit code
    2; an interrupt is exit code 130."""
    # Torch's threads otherwise spin while they wait for each other, which on busy cores takes several times as long. To
    # be set before torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.getLogger("retcon").addHandler(_Lines())
    logging.getLogger("retcon").setLevel(logging.INFO)
    warnings.showwarning = _warn  # type: ignore[assignment]  # takes the rest as it comes
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As for standard error: neither a terminal that is not in UTF-8 nor an undecodable file name ends a command.
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
    """Handler that prints Retcon's log as plain lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(record.getMessage(), err=True)


def _warn(message: Warning | str, *_: object) -> None:
    """Print a warning as one line without its source. Through sys.stderr, which a progress bar redirects to above
    itself."""
    typer.echo(f"warning: {message}", err=True)


def _say(message: str, *, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    label = "error: " if style == "red" else "stopped: "
    console = Console(stderr=True)
    # Whole lines when it is no terminal: paths in a log must not be broken.
    console.print(Text(label, f"bold {style}") + Text(message, style), soft_wrap=not console.is_terminal)
