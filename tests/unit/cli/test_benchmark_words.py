"""What `retcon eval` makes of the words after its model, and `retcon benchmarks`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.cli.eval import EvalWords, sort_words
from retcon.core.errors import RecipeError
from retcon.tasks.data.fields import DataError


def test_benchmarks_models_a_recipe_and_changes_are_told_apart(tmp_path: Path) -> None:
    words = ["aime24", "base", str(tmp_path), "Qwen/Qwen3-0.6B", "http://127.0.0.1:1/v1", "quickstart/saar", "gsm8k"]
    changes = ["evaluate.samples=2", "engine.url=http://x/v1"]
    models = ("base", str(tmp_path), "Qwen/Qwen3-0.6B", "http://127.0.0.1:1/v1")
    assert sort_words([*words, *changes]) == EvalWords(("aime24", "gsm8k"), models, "quickstart/saar", tuple(changes))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["aime23"], r"'aime23' \(did you mean 'aime2\d'\?\) is not a benchmark"),
        (["quickstart/sar"], "no recipe 'quickstart/sar'"),
        (["mini/grpo", "quickstart/saar"], "an evaluation has one recipe, and mini/grpo and quickstart/saar are two"),
        (["evaluate.samples=2", "quickstart/saar"], "'quickstart/saar' is not an override"),
        (["my_none:THING"], "benchmark 'my_none:THING' cannot be imported"),
    ],
)
def test_a_word_that_is_none_of_them_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        sort_words(words)


def test_benchmarks_are_listed_for_people_and_programs() -> None:
    shown = CliRunner().invoke(app, ["benchmarks"], catch_exceptions=False, env={"COLUMNS": "120"}).output
    assert "Idavidrein/gpqa" in shown
    assert "gated" in shown
    listed = json.loads(CliRunner().invoke(app, ["benchmarks", "--json"], catch_exceptions=False).output)
    assert next(one for one in listed if one["name"] == "gsm8k")["size"] == 1319


def test_a_file_without_a_benchmarks_name_is_refused() -> None:
    done = CliRunner().invoke(app, ["eval", "base", "--benchmark-file", "x.jsonl"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "'x.jsonl': write it as NAME=FILE" in " ".join(done.output.split())


@pytest.mark.filterwarnings("ignore:.*its results are not comparable")
def test_what_is_wrong_with_one_benchmark_is_said_before_any_is_measured(tmp_path: Path) -> None:
    good, bad, out = tmp_path / "good.jsonl", tmp_path / "bad.jsonl", tmp_path / "out"
    good.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    bad.write_text('{"text": "Write it.", "tests": "assert True"}\n')
    files = ("--benchmark-file", f"gsm8k={good}", "--benchmark-file", f"bigcodebench={bad}")
    done = CliRunner().invoke(app, ["eval", "base", *files, "--tools", "both", "--out", str(out)])
    assert isinstance(done.exception, DataError)
    assert "no column 'complete_prompt'; there are: text, tests" in str(done.exception)
    assert not out.exists()
