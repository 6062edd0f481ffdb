"""`retcon init`: files to begin with, which go together."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError


def test_init_writes_ten_problems_that_its_recipe_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["init"], catch_exceptions=False)
    assert shown.exit_code == 0
    assert "retcon train own.toml --from smollm2-135m --dry-run" in shown.output
    tasks = load_recipe("own.toml").task.build()
    assert len(list(tasks.train(0))) + len(tasks.evaluation(50, 0)) == 10


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text("mine")
    with pytest.raises(RecipeError, match=r"problems\.jsonl exists already"):
        CliRunner().invoke(app, ["init", str(tmp_path)], catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == ["problems.jsonl"]


def test_examples_come_along(tmp_path: Path) -> None:
    CliRunner().invoke(app, ["init", str(tmp_path), "--examples"], catch_exceptions=False)
    assert (tmp_path / "examples/transcripts.jsonl").is_file()
