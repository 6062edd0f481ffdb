"""Flags that would change nothing where they are given are refused, and so are values that no bound holds for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from retcon.cli.app import app


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "FILE", "--raw"), "--raw: it is of one trajectory"),
        (("show", "FILE", "ID", "--first-repaired"), "--first-repaired: ID is named already"),
        (("show", "FILE", "ID", "--limit", "3"), "--limit: it is of the list"),
        (("show", "FILE", "--first-repaired", "-n", "0"), "--limit: it is of the list"),
        (("recipes", "mini/grpo", "--markdown"), "--markdown: it is of the whole list: leave mini/grpo out"),
        (("diff", "FILE", "--seed", "0"), "--seed: it is of a draw"),
        (("diff", "FILE", "--sample", "2", "--all"), "--all: --sample 2 shows no more"),
        (("sft", "--from", "mine"), "--from: here it is a key of the recipe: model.path=mine"),
        (("train", "RECIPE", "--data", "mine.csv"), "--data: here it is a key of the recipe: task.path=mine.csv"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_a_flag_that_would_change_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def fractions_of(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The commands' options that take a fraction: (words of the command, option)."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from fractions_of(command, *names, name)
        for given in command.params:
            if given.opts[0].startswith("--") and given.type_descriptor.annotation in (float, float | None):
                yield (*names, name), given.opts[0]


FRACTIONS = list(fractions_of(typer.main.get_command(app)))


def test_there_are_options_with_fractions() -> None:
    assert {("serve-agent",), ("sandbox", "serve"), ("quickstart",)} <= {command for command, _ in FRACTIONS}


@pytest.mark.parametrize(("command", "option"), FRACTIONS, ids=str)
def test_no_option_takes_what_is_no_number(command: tuple[str, ...], option: str) -> None:
    """NaN is below no bound and above none: each check of a bound would let it pass."""
    needed = {("compare",): ("a", "b", "--out", "x"), ("purify",): ("x", "--out", "y"), ("sandbox", "exec"): ("-",)}
    needed |= {("serve-agent",): ("base",), ("data", "export"): ("x", "--verl", "y.parquet")}
    words = [*command, *needed.get(command, ()), f"{option}=nan"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': " in " ".join(done.output.split())


def test_a_quickstart_without_end_is_refused() -> None:
    done = CliRunner().invoke(app, ["quickstart", "smollm2", "--hours", "inf"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert "--hours" in done.output
