"""From transcripts with failures to trained models: purify, sft and dpo, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foreign import FORMATS, REPAIRED, answer, user, works
from retcon.cli.app import app
from retcon.core.errors import CheckpointError
from retcon.train.dpo import run_dpo
from retcon.train.sft import run_sft
from training import make_base, small_recipe

pytestmark = pytest.mark.torch
DPO = {"steps": 6, "batch": 3, "lr": 1e-3, "checkpoint_every": 2}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_base(tmp_path_factory.mktemp("transcripts") / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    return folder


def purified(folder: Path, format: str) -> tuple[Path, Path]:
    """What `retcon purify` makes of four transcripts: the clean ones, and the pairs."""
    steps = [REPAIRED, (user("and of 9?"), works("print(9 ** .5)", "3.0"), answer("3"))] * 2
    folder.mkdir()
    source, clean, pairs = (folder / f"{name}.jsonl" for name in ("source", "clean", "pairs"))
    source.write_text("".join(json.dumps(FORMATS[format](s)) + "\n" for s in steps))
    words = ["purify", str(source), "-o", str(clean), "--dpo", str(pairs), "--no-audit"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return clean, pairs


@pytest.mark.parametrize("format", ["messages", "sharegpt", "hermes", "markdown", "mathcoder", "mint"])
def test_what_purify_writes_leads_to_a_model(base, tmp_path, format):
    clean, pairs = purified(tmp_path / "data", format)
    recipe = small_recipe(base, sft={"steps": 3, "batch": 2, "lr": 1e-3}, dpo={**DPO, "steps": 3, "batch": 2})
    learnt, preferred = [], []
    final = run_sft(recipe, clean, tmp_path / "sft", on_step=learnt.append)
    assert learnt[-1]["loss"] < learnt[0]["loss"]
    run_dpo(recipe, pairs, final, tmp_path / "dpo", on_step=preferred.append)
    assert preferred[0]["margin"] == pytest.approx(0.0, abs=1e-4), "it starts from its reference"
    assert preferred[-1]["margin"] > 0
    assert preferred[-1]["loss"] < preferred[0]["loss"]


def test_a_folder_is_trained_on_and_a_run_goes_on_with_that_folder_alone(base, tmp_path):
    clean, _ = purified(tmp_path / "data", "messages")
    (tmp_path / "clean").mkdir()
    clean.rename(tmp_path / "clean/a.jsonl")
    recipe = small_recipe(base, sft={"steps": 1, "batch": 2, "lr": 1e-3})
    run_sft(recipe, tmp_path / "clean", tmp_path / "sft")
    (tmp_path / "clean/b.jsonl").write_bytes((tmp_path / "clean/a.jsonl").read_bytes())
    with pytest.raises(CheckpointError, match="was started from other demonstrations"):
        run_sft(recipe, tmp_path / "clean", tmp_path / "sft")


@pytest.mark.parametrize(("command", "flag"), [("sft", "--demonstrations"), ("dpo", "--pairs")])
def test_a_second_file_is_refused_and_does_not_take_the_place_of_the_first(command, flag, tmp_path):
    done = CliRunner().invoke(app, [command, flag, "a.jsonl", flag, "b.jsonl", "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "takes one file, got 2: a.jsonl, b.jsonl" in " ".join(done.output.replace("│", " ").split())


def test_the_commands_train_on_them(base, tmp_path):
    clean, pairs = purified(tmp_path / "data", "sharegpt")
    few = ["sft.steps=1", "sft.batch=2", f"model.path={base}"]
    words = ["sft", "quickstart/cold_start", *few, "--demonstrations", str(clean), "--out", str(tmp_path / "sft")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"retcon eval {tmp_path / 'sft'} quickstart/cold_start sft.steps=1 " in done.output
    words = ["dpo", "quickstart/saar", "dpo.steps=2", "dpo.batch=2", "--pairs", str(pairs)]
    done = CliRunner().invoke(app, [*words, "--from", str(tmp_path / "sft"), "--out", str(tmp_path / "dpo")])
    assert done.exit_code == 0, done.output
    assert f"model: {tmp_path / 'dpo/final'}" in done.output
    assert f"retcon eval {tmp_path / 'dpo'} quickstart/saar dpo.steps=2 " in done.output
    assert json.loads((tmp_path / "dpo/run.json").read_text())["kind"] == "dpo"
