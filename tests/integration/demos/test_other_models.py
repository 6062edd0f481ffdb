"""Demonstrations of one model beside a recipe of another: those of the same tokens are learnt, others refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.core.errors import CheckpointError
from training import make_base

pytestmark = pytest.mark.torch


def renamed(base: Path, folder: Path) -> Path:
    """The same model, two of whose tokens stand for each other's text."""
    shutil.copytree(base, folder)
    file = folder / "tokenizer.json"
    definition = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = definition["model"]["vocab"]
    vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
    file.write_text(json.dumps(definition), encoding="utf-8")
    return folder


def test_demonstrations_for_other_tokens_are_not_those_that_were_asked_for(tmp_path: Path) -> None:
    from retcon.cli.demonstrations import ensure_demonstrations
    from retcon.config.load import load_recipe

    base = make_base(tmp_path / "base", positions=2048)
    same, other = shutil.copytree(base, tmp_path / "same"), renamed(base, tmp_path / "other")
    file = tmp_path / "d.jsonl"

    def written_for(model: Path, *changes: str) -> object:
        overrides = ["sft.demonstrations=2", "sandbox.workers=1", f"model.path={model}", *changes]
        return ensure_demonstrations(load_recipe("quickstart/cold_start", overrides), file, lambda *_: None)

    summary = written_for(base)
    assert written_for(same) == summary
    others = [(other, (), "vocabulary"), (base, ("model.style=auto", "model.thinking=off"), "thinking")]
    for model, change, key in others:
        with pytest.raises(CheckpointError, match=rf"d\.jsonl: another recipe wrote it \(.*model\.{key} was"):
            written_for(model, *change)
    note = tmp_path / "d.jsonl.recipe.json"
    told = json.loads(note.read_text())
    for key in ("vocabulary", "thinking"):
        del told["model"][key]
    note.write_text(json.dumps(told))
    assert written_for(other) == summary, "a note of before says nothing about tokens; reading the file does"
    learn = ["sft", "quickstart/cold_start", "sft.demonstrations=2", "sandbox.workers=1", f"model.path={other}",
             "--demonstrations", str(file), "--out", str(tmp_path / "run")]  # fmt: skip
    done = CliRunner().invoke(app, learn)
    assert done.exit_code
    assert "d.jsonl, line 1: the ids of" in " ".join(str(done.exception or done.output).split())
    assert not (tmp_path / "run/run.json").exists()


def test_a_note_of_before_a_key_is_of_the_recipe_where_the_key_has_its_default(tmp_path: Path) -> None:
    from retcon.cli.demonstrations import ensure_demonstrations
    from retcon.config.load import load_recipe

    base, file = make_base(tmp_path / "base", positions=2048), tmp_path / "d.jsonl"

    def written(*changes: str) -> object:
        overrides = ["sft.demonstrations=2", f"model.path={base}", *changes]
        return ensure_demonstrations(load_recipe("quickstart/cold_start", overrides), file, lambda *_: None)

    summary = written("sandbox.workers=1")
    note = tmp_path / "d.jsonl.recipe.json"
    told = json.loads(note.read_text())
    del told["sandbox"]["sessions"], told["demos"]["failed_share"]
    told["sandbox"]["url"] = ["http://127.0.0.1:9"]  # which says nothing of what was made
    note.write_text(json.dumps(told))
    assert written("sandbox.workers=7") == summary
    with pytest.raises(CheckpointError, match=r"wrote it \(sandbox\.sessions was None, is True; see"):
        written("sandbox.sessions=true")


@pytest.mark.parametrize("there", [False, True], ids=["before the file", "after the file"])
def test_a_kill_beside_the_note_leaves_no_file_that_looks_like_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    from retcon.cli.demonstrations import ensure_demonstrations
    from retcon.config.load import load_recipe

    base, file = make_base(tmp_path / "base", positions=2048), tmp_path / "d.jsonl"
    replace = Path.replace

    def written(*changes: str) -> object:
        overrides = ["sft.demonstrations=2", "sandbox.workers=1", f"model.path={base}", *changes]
        return ensure_demonstrations(load_recipe("quickstart/cold_start", overrides), file, lambda *_: None)

    def killed(path: Path, target: Path) -> Path:
        if there or target != file:
            replace(path, target)
        if target == file:
            raise KeyboardInterrupt
        return target

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            written()
    assert file.exists() is there
    with pytest.raises(CheckpointError, match=r"sandbox\.sessions"):
        written("sandbox.sessions=true")
    assert written() is not None
    assert file.read_bytes().count(b"\n") == 2
