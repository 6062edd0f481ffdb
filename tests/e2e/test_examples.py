"""The examples run, and print what they are there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError
from retcon.store import jsonl

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SHOWS = {
    "sandbox_in_an_agent": ["ok 6", "timeout", "error IndexError", "[1, 2, 3]"],
    "own_tool": ["malformed malformed call: no 'city' argument", "ok -4", "ok 28"],
    "own_task": ["palindromes/"],
    "train_a_harness": ["step 1: 8 conversations", "step 2: 8 conversations"],
    "purify_transcripts": ["2 calls, 1 failed, 1 shallow and 0 deep repairs"],
}


def test_every_example_is_run_here() -> None:
    needs_smolagents = {"managed_agents"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWS) | needs_smolagents


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_shows_what_it_is_for(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    for shown in SHOWS[name]:
        assert shown in done.stdout
    if name == "purify_transcripts":
        assert "NameError" not in done.stdout


def test_the_harness_of_an_example_trains(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="training needs the [train] extra")
    words = ("examples/own_harness/recipe.toml", "rl.steps=1", "rl.prompts=1", "rl.group=2", "run.threads=1")
    done = subprocess.run(
        [sys.executable, "-m", "retcon", "train", *words, "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    made = list(jsonl.read(tmp_path / "run/trajectories/step-000001.jsonl"))
    assert [t.stop == "infrastructure" for t in made] == [False, False]
    assert all(t.turns and t.reward is not None for t in made)


def test_a_class_of_an_example_is_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    recipe = load_recipe(None, ["task.kind=own_task:Palindromes", "task.digits=3"])
    assert all(task.id.startswith("palindromes/") for task in recipe.task.build().evaluation(2, seed=0))
    assert len(recipe.task.build().evaluation(1000, seed=0)) == 450
    with pytest.raises(
        RecipeError, match=r"task\.digits = 2 is not allowed: input should be greater than or equal to 3"
    ):
        load_recipe(None, ["task.kind=own_task:Palindromes", "task.digits=2"])
    with pytest.raises(RecipeError, match=r"unknown key 'digts' in \[task\] \(did you mean 'digits'\?\)"):
        load_recipe(None, ["task.kind=own_task:Palindromes", "task.digts=1"])


def test_the_recipe_of_the_own_data_names_a_file_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tasks = load_recipe("own", ["task.path=examples/own_data/problems.jsonl"]).task.build()
    assert len(list(tasks.train(0))) + len(tasks.evaluation(50, 0)) == 50
