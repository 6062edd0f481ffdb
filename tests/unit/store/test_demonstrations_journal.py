"""The journal of demonstrations: one process at a time adds to it, and what two wrote is not gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, RecordError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.runs.comparing import Values, relevant
from retcon.train.demos.journal import FileJournal
from retcon.train.demos.types import Made

RECIPE = load_recipe(None)
MADE_FROM = {"run": {"seed": 0}}


def stretch(number: int) -> Made:
    return Made(1, (Trajectory(f"t{number}", "a", (), (Turn((Segment("sampled", str(number)),)),)),), {})


def test_a_second_one_over_the_same_file_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    file, partial = tmp_path / "d.jsonl", tmp_path / "d.jsonl.partial"
    with FileJournal(file, MADE_FROM, RECIPE) as first:
        first.add(stretch(0))
        with partial.open("ab") as half:
            half.write(b'{"stop": 2, "kep')  # as a line that is being written
        with pytest.raises(CheckpointError, match=r"another command is at work on .*d\.jsonl\.partial: wait for it"):
            FileJournal(file, MADE_FROM, RECIPE)
        assert partial.read_bytes().endswith(b'"kep')  # nothing of the first's was touched
        with FileJournal(tmp_path / "other.jsonl", MADE_FROM, RECIPE) as other:
            assert other.stop == 0
    with FileJournal(file, MADE_FROM, RECIPE) as again:
        assert (again.stop, [one.id for one in again.kept]) == (1, ["t0"])
        again.remove()
    assert not partial.exists()


def test_one_that_cannot_be_begun_holds_nothing(tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    with FileJournal(file, MADE_FROM, RECIPE):
        pass
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"run\.seed was 0, is 1"):
            FileJournal(file, {"run": {"seed": 1}}, RECIPE)
    with FileJournal(file, MADE_FROM, RECIPE) as again:
        assert again.stop == 0
    (tmp_path / "e.jsonl.partial").mkdir()
    with pytest.raises(RecordError, match="is a folder"):
        FileJournal(tmp_path / "e.jsonl", MADE_FROM, RECIPE)


def test_what_two_commands_wrote_side_by_side_is_refused_with_its_line(tmp_path: Path) -> None:
    file, partial = tmp_path / "d.jsonl", tmp_path / "d.jsonl.partial"
    with FileJournal(file, MADE_FROM, RECIPE) as journal:
        for number in range(2):
            journal.add(stretch(number))
    lines = partial.read_bytes().splitlines(keepends=True)
    assert [json.loads(line).get("stop") for line in lines] == [None, 1, 2]
    partial.write_bytes(b"".join([*lines, lines[1]]))
    with pytest.raises(CheckpointError, match=r"line 4: candidates up to 1 after those up to 2: two"):
        FileJournal(file, MADE_FROM, RECIPE)


def test_one_of_before_a_key_goes_on_where_the_key_has_its_default(tmp_path: Path) -> None:
    def about(recipe: Recipe) -> Values:
        return {**relevant(recipe, "demonstrations"), "inputs": {"tasks": "1f"}}

    file, now = tmp_path / "d.jsonl", about(RECIPE)
    old = {name: dict(keys) for name, keys in now.items()}
    del old["task"]["steps"], old["sandbox"]["sessions"]
    old["sandbox"]["url"] = ["http://127.0.0.1:9"]  # which says nothing of what is made
    with FileJournal(file, old, RECIPE) as journal:
        journal.add(stretch(0))
    with FileJournal(file, now, RECIPE) as again:
        assert again.stop == 1
    other = load_recipe(None, ["sandbox.sessions=true"])
    with pytest.raises(CheckpointError, match=r"other data \(sandbox\.sessions was None, is True\): remove it"):
        FileJournal(file, about(other), other)


@pytest.mark.parametrize(
    "line", [b'{"made_from": {"run": {"\xff": 0}}}\n', b'{"stop": 1, "rejected": {"\xff": 1}, "kept": []}\n']
)
def test_one_that_is_no_unicode_is_broken_and_left(tmp_path: Path, line: bytes) -> None:
    file, partial = tmp_path / "d.jsonl", tmp_path / "d.jsonl.partial"
    with FileJournal(file, MADE_FROM, RECIPE):
        pass
    made = line if b"made_from" in line else partial.read_bytes() + line
    partial.write_bytes(made)
    with pytest.raises(CheckpointError, match=r"d\.jsonl\.partial is broken \(UnicodeDecodeError"):
        FileJournal(file, MADE_FROM, RECIPE)
    assert partial.read_bytes() == made


def test_one_of_a_server_goes_on_where_that_is_asked_otherwise(tmp_path: Path) -> None:
    def about(*keys: str) -> tuple[Values, Recipe]:
        recipe = load_recipe(None, ["demos.kind=openai", "demos.url=http://a:1/v1", "demos.model=m", *keys])
        return relevant(recipe, "demonstrations"), recipe

    with FileJournal(tmp_path / "d.jsonl", *about()) as journal:
        journal.add(stretch(0))
    with FileJournal(tmp_path / "d.jsonl", *about("demos.seconds=600", "demos.patience=9", "demos.key_env=K")) as again:
        assert again.stop == 1
    with pytest.raises(CheckpointError, match=r"other data \(demos\.tries was 4, is 5\): remove it"):
        FileJournal(tmp_path / "d.jsonl", *about("demos.tries=5"))
