"""What a newcomer gets wrong is one clear error of `retcon train`, before anything is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.core.errors import CheckpointError, RetconError
from training import make_base

pytestmark = pytest.mark.torch
GOOD = b'{"question": "1+1?", "answer": "2"}\n'


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base")


def train(tmp_path: Path, *words: object) -> None:
    out = tmp_path / "out"
    try:
        CliRunner().invoke(app, ["train", "quickstart/baseline", *map(str, words), "--out", str(out)],
                           catch_exceptions=False)  # fmt: skip
    finally:
        assert not out.exists(), "it was refused before work started"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"text": "x", "label": "1"}\n', r"a\.jsonl, line 1: .*text, label.*columns = \{ question = "),
        ("a.jsonl", b"", r"a\.jsonl is empty"),
        ("a.jsonl", GOOD + b'{"question": {"a": 1}, "answer": "1"}\n', "line 2: column 'question' is an object"),
        ("a.csv", "question,answer\nGröße?,1\n".encode("latin1"), r"a\.csv, line 2: not UTF-8 .*iconv"),
        ("a.jsonl", json.dumps({"question": "x", "answer": "1" * 10_000_000}).encode(), "has 10,000,000 characters"),
    ],
)
def test_data(name: str, content: bytes, said: str, base: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RetconError, match=said):
        train(tmp_path, "task.kind=file", f"task.path={tmp_path / name}", "--from", base)


def test_a_tokenizer_of_another_vocabulary_than_the_model(base: Path, tmp_path: Path) -> None:
    other = shutil.copytree(base, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 100}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has [\d,]+ tokens and the model 100: they are"):
        train(tmp_path, "--from", other)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "quickstart/baseline", "rl.steps=1", "rl.prompts=1", "rl.group=2", "evaluate.every=0"),
        ("train", "quickstart/baseline", "--dry-run"),
        ("compare", "quickstart/baseline", "quickstart/saar"),
    ],
    ids=["train", "dry-run", "compare"],
)
def test_a_folder_that_no_model_could_be_loaded_from(words: tuple[str, ...], base: Path, tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"not\xfftext")
    with pytest.raises(CheckpointError, match="is not in UTF-8, and no model could be loaded from there"):
        CliRunner().invoke(app, [*words, "--from", str(base), "--out", str(out)], catch_exceptions=False)
    assert not out.exists()
