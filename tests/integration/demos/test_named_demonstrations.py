"""`retcon sft --demonstrations FILE` where FILE is not there, or something else lies beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, RecipeError
from retcon.store import jsonl
from teaching import annotated, teacher_at
from training import make_base, make_demonstrations

pytestmark = pytest.mark.torch


FEW = ("sft.demonstrations=2", "sft.steps=1", "sft.batch=2", "sandbox.workers=1", "compute.device=cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=2048)


def sft(base: Path, out: Path, *words: object) -> list[str]:
    return list(map(str, ["sft", "quickstart/cold_start", *FEW, f"model.path={base}", *words, "--out", out]))


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["run", "plan"])
def test_a_mistyped_file_is_refused_with_the_nearest_and_nothing_is_written(
    base: Path, tmp_path: Path, dry: tuple[str, ...]
) -> None:
    make_demonstrations(base, tmp_path / "clean.jsonl")
    words = sft(base, tmp_path / "run", "--demonstrations", tmp_path / "claen.jsonl", *dry)
    with pytest.raises(RecipeError, match=r"claen\.jsonl is not there \(did you mean 'clean\.jsonl'\?\).*retcon demos"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    absent = sft(base, tmp_path / "run", "lora.rank=4", "--demonstrations", tmp_path / "none/clean.jsonl", *dry)
    with pytest.raises(RecipeError, match=r"none/clean\.jsonl is not there: ") as caught:
        CliRunner().invoke(app, absent, catch_exceptions=False)
    assert "lora" not in str(caught.value), "the command that is named would refuse it"
    assert [p.name for p in tmp_path.iterdir()] == ["clean.jsonl"]


def test_what_was_begun_or_made_before_is_gone_on_with(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "made.jsonl"
    demos = ["demos", "quickstart/cold_start", *FEW, f"model.path={base}", "--out", str(file)]
    assert CliRunner().invoke(app, demos, catch_exceptions=False).exit_code == 0
    made = file.read_bytes()
    file.unlink()  # the note of what made it is there
    words = sft(base, tmp_path / "run", "--demonstrations", file)
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert file.read_bytes() == made


BAD = [{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}, {"none": 1}]


@pytest.mark.parametrize("command", ["sft", "demos"])
def test_what_purify_left_is_not_to_be_removed(
    base: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source.jsonl").write_text("".join(json.dumps(one) + "\n" for one in BAD))
    purified = CliRunner().invoke(app, ["purify", "source.jsonl", "-o", "clean.jsonl", "--no-audit"])
    assert purified.exit_code
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert {"clean.jsonl.partial", "clean.jsonl.partial.json"} <= before.keys()
    words = (
        sft(base, tmp_path / "run", "--demonstrations", "clean.jsonl")
        if command == "sft"
        else ["demos", "quickstart/cold_start", *FEW, f"model.path={base}", "--out", "clean.jsonl"]
    )
    with pytest.raises(
        CheckpointError, match=r"clean\.jsonl\.partial is of an interrupted `retcon purify … -o clean\.jsonl`"
    ) as said:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert "--resume" in str(said.value)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_custom_file_beside_it_stays_as_it_is(base: Path, tmp_path: Path) -> None:
    for mine in ('{"messages": []}\n{"cut', "words\n", "[1]\n"):
        (tmp_path / "clean.jsonl.partial").write_text(mine)
        words = sft(base, tmp_path / "run", "demos.kind=teacher", "--demonstrations", tmp_path / "clean.jsonl")
        with pytest.raises(
            CheckpointError, match=r"clean\.jsonl\.partial is not a journal of demonstrations.*another file"
        ):
            CliRunner().invoke(app, words, catch_exceptions=False)
        assert (tmp_path / "clean.jsonl.partial").read_text() == mine


@pytest.mark.parametrize("note", ["{", "[]", '{"model": []}', '{"made": {}}'])
def test_a_broken_note_of_what_made_demonstrations_is_refused_by_name(base: Path, tmp_path: Path, note: str) -> None:
    file = make_demonstrations(base, tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl.recipe.json").write_text(note)
    words = sft(base, tmp_path / "run", "--demonstrations", file)
    with pytest.raises(CheckpointError, match=r"d\.jsonl\.recipe\.json is broken .*: remove it and"):
        CliRunner().invoke(app, words, catch_exceptions=False)


# `retcon demos` for each kind, and the command that it then names: what came out is learnt from.


REPLIES = ["```python\nprint(5 * 6)\n```", "So \\boxed{30}."]
SUMS = [{"question": f"What is {n} times 6?", "answer": str(n * 6)} for n in (5, 7)]
TALK = [
    {"role": "user", "content": "What is 5 times 6?"},
    {"role": "assistant", "content": REPLIES[0]},
    {"role": "tool", "content": "30"},
    {"role": "assistant", "content": REPLIES[1]},
]


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


# Demonstrations of one model beside a recipe of another: those of the same tokens are learnt, others refused.


@pytest.mark.parametrize("there", [False, True], ids=["before the file", "after the file"])
def test_a_kill_beside_the_note_leaves_no_file_that_looks_like_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    from retcon.cli.demonstrations import ensure_demonstrations

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
