"""`retcon demos` for each kind, and the command that it then names: what came out is learnt from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.core.errors import RecordError
from retcon.store import jsonl
from teaching import annotated, teacher_at
from training import make_base

pytestmark = pytest.mark.torch
REPLIES = ["```python\nprint(5 * 6)\n```", "So \\boxed{30}."]
SUMS = [{"question": f"What is {n} times 6?", "answer": str(n * 6)} for n in (5, 7)]
TALK = [
    {"role": "user", "content": "What is 5 times 6?"},
    {"role": "assistant", "content": REPLIES[0]},
    {"role": "tool", "content": "30"},
    {"role": "assistant", "content": REPLIES[1]},
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=2048)


def written(file: Path, rows: list[dict[str, object]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@contextmanager
def settings(kind: str, folder: Path) -> Iterator[list[str]]:
    """Overrides that make six demonstrations at most of this kind, of data in the folder."""
    rows = annotated(6) if kind == "annotated" else SUMS
    task = ["task.kind=file", f"task.path={written(folder / 'rows.jsonl', rows)}", "task.evaluation_share=0"]
    if kind == "openai":
        with teacher_at(lambda messages: REPLIES[messages[-1]["content"].startswith("It printed")]) as server:
            yield [*task, f"demos.url={server.url}", "demos.model=big"]
    elif kind == "transcripts":
        yield [f"demos.path={written(folder / 'talk.jsonl', [{'messages': TALK}] * 3)}"]
    elif kind == "teacher":
        yield []
    else:
        yield [*task, *(["engine.kind=scripted", f"engine.replies={json.dumps(REPLIES)}"] if kind == "engine" else [])]


@pytest.mark.parametrize(
    ("kind", "kept"), [("teacher", 6), ("annotated", 6), ("engine", 1), ("openai", 1), ("transcripts", 3)]
)
def test_what_it_writes_is_learnt_from_by_the_command_that_it_names(
    kind: str, kept: int, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with settings(kind, tmp_path) as own:
        words = [
            "demos", "quickstart/cold_start", f"model.path={base}", f"demos.kind={kind}", *own, "sft.demonstrations=6",
            "sft.steps=2", "sft.batch=2", "rollout.max_tokens=1500", "sandbox.workers=1", "--out", "d.jsonl",
        ]  # fmt: skip
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"kept: {kept}, " in done.output
    found = list(jsonl.read(tmp_path / "d.jsonl"))
    assert len(found) == kept
    assert all(segment.ids is not None for trajectory in found for segment in trajectory.segments)
    named = done.output.partition("try: retcon ")[2].strip()
    trained = CliRunner().invoke(app, shlex.split(named), catch_exceptions=False)
    assert trained.exit_code == 0, trained.output
    steps = [json.loads(line) for line in (tmp_path / "runs/sft/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2]
    assert all(0 < step["loss"] < 20 for step in steps)


def test_a_folder_is_no_place_for_demonstrations(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demos", "quickstart/cold_start", "--out", str(tmp_path)])
    assert isinstance(done.exception, RecordError)
    assert f"--out {tmp_path} is a folder" in str(done.exception)
