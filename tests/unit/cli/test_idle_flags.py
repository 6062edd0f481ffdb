"""Flags that would change nothing where they are given are refused."""

from __future__ import annotations

import pytest
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
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_a_flag_that_would_change_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
