"""Overrides of sections that a command does not read are refused, and hints lead to those that it reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.cli.arguments import READS
from retcon.config.load import ALL, load_recipe
from retcon.core.errors import RecipeError

PAGE = Path(__file__).parents[3] / "docs" / "training" / "recipes.md"


@pytest.mark.parametrize(
    ("command", "override", "said"),
    [
        ("train", "lr=1e-5", r"'lr' has no section; .* \(did you mean 'rl\.lr'\?\)"),
        ("train", "steps=3", r"\(did you mean 'task\.steps' or 'rl\.steps'\?\)"),
        ("train", "sft.lr=1e-5", r"does not read \[sft\] \(did you mean 'rl\.lr'\?\); it reads run, model, "),
        ("sft", "rl.lr=1e-6", r"does not read \[rl\] \(did you mean 'sft\.lr'\?\)"),
        ("sft", "stages.1.steps=3", r"does not read \[stages\]"),
        ("sft", "evaluate.problems=9", r"does not read \[evaluate\], except evaluate\.seed; it reads run, model, "),
        ("dpo", "gamma=1", r"'gamma' has no section; write section\.key=value$"),
        ("conversing", "sft.lr=3", r"does not read \[sft\]; it reads"),
        (
            "audit",
            "evaluate.faults=.1",
            r"does not read \[evaluate\], except evaluate\.seed; it reads run, model, ",
        ),
        ("audit", "evaluate.sead=1", r"does not read \[evaluate\], except evaluate\.seed"),
        ("train", "repiar.gamma=1", r"unknown section 'repiar' \(did you mean 'repair'\?\)"),
    ],
)
def test_what_a_command_does_not_read_is_refused(command: str, override: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        load_recipe("quickstart/saar", [override], reads=READS[command])
    assert f"override '{override}'" in str(caught.value)


@pytest.mark.parametrize(("key", "instead"), [("problems", "--prompts"), ("samples", "rl.group")])
def test_an_audit_names_what_does_what_an_evaluations_key_would(key: str, instead: str) -> None:
    done = CliRunner().invoke(app, ["audit", "nowhere", "quickstart/saar", f"evaluate.{key}=100"])
    assert isinstance(done.exception, RecipeError)
    assert str(done.exception).startswith(f"override 'evaluate.{key}=100': an audit has {instead} for that")


def test_what_stands_in_the_file_is_for_other_commands(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[sft]\nlr = 1e-3\n[rl]\nlr = 1e-5\n[dpo]\nlr = 1e-6\n")
    for reads in READS.values():
        assert load_recipe(tmp_path / "mine.toml", ["run.seed=3"], reads=reads).dpo.lr == 1e-6


def test_a_key_in_no_kind_that_is_chosen_is_reported_with_its_place() -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'rl\.steps'\?"):
        load_recipe("quickstart/saar", ["task.kind=file", "steps=3"], reads=READS["train"])


def test_the_page_on_recipes_names_the_sections_of_each_command() -> None:
    rows = re.findall(r"^\| (`retcon [^|]*) \| ([^|]*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = {command: re.sub(r"\([^)]*\)", "", said) for command, said in rows}
    names = {"conversing": "`retcon ask`, `retcon serve-agent`"}
    for command in ("demos", "dpo", "difficulty", "conversing"):
        words = re.findall(r"`([\w.]+)`", told[names.get(command, f"`retcon {command}`")])
        assert {word.partition(".")[0] for word in words} - {"key"} == set(READS[command]), command
    assert set(READS["train"]) == set(ALL) - {"sft", "dpo", "demos"}
