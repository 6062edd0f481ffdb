"""The journal of demonstrations: one process at a time adds to it, and what two wrote is not gone on with."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError, RecordError, StorageError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.store.jsonl import line_of
from retcon.train.demos import making as journal
from retcon.train.demos.making import FileJournal, has_journal
from retcon.train.demos.types import DemoBatch

RECIPE = load_recipe(None)
MADE_FROM = {"run": {"seed": 0}}


def stretch(number: int) -> DemoBatch:
    return DemoBatch(1, (Trajectory(f"t{number}", "a", (), (Turn((Segment("sampled", str(number)),)),)),), {})


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
        for _ in range(2):
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
    for again in (1, 2):
        partial.write_bytes(b"".join([*lines, lines[again]]))
        with pytest.raises(CheckpointError, match=rf"line 4: candidates up to {again} after those up to 2: two"):
            FileJournal(file, MADE_FROM, RECIPE)


def test_a_stretch_is_a_line_in_which_there_is_all_that_became_of_it(tmp_path: Path) -> None:
    file, partial = tmp_path / "d.jsonl", tmp_path / "d.jsonl.partial"
    made_from = {"inputs": {"täsks": "1f"}}
    (one,), (two,) = stretch(1).kept, stretch(2).kept
    stretches = [DemoBatch(4, (one, two), {"wröng": 1, "lost": 1}), DemoBatch(2), DemoBatch(3, (), {"wröng": 3})]
    with FileJournal(file, made_from, RECIPE) as journal:
        for made in stretches:
            journal.add(made)
    kept = ",".join(line_of(each).decode().strip() for each in (one, two))
    assert partial.read_text(encoding="utf-8").splitlines() == [
        '{"made_from":{"inputs":{"täsks":"1f"}}}',
        f'{{"stop":4,"rejected":{{"wröng":1,"lost":1}},"kept":[{kept}]}}',
        '{"stop":6,"rejected":{},"kept":[]}',
        '{"stop":9,"rejected":{"wröng":3},"kept":[]}',
    ]
    with FileJournal(file, made_from, RECIPE) as again:
        assert (again.stop, again.batches) == (9, stretches)
        assert (again.kept, again.rejected) == ([one, two], {"wröng": 4, "lost": 1})


@pytest.mark.parametrize("lines", ['{"made_from":3}', '{"made_from":{"run":3}}', '{"made_from":{}}\n{"stop":1}',
                                   '{"made_from":{}}\n{"stop":"1"}', '{"made_from":{}}\n3'])  # fmt: skip
def test_one_in_which_something_else_stands_is_broken_and_left(tmp_path: Path, lines: str) -> None:
    partial = tmp_path / "d.jsonl.partial"
    partial.write_text(f"{lines}\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"d\.jsonl\.partial is broken \("):
        FileJournal(tmp_path / "d.jsonl", {}, RECIPE)
    assert partial.read_text(encoding="utf-8") == f"{lines}\n"


def test_a_trajectory_that_is_none_is_reported_with_its_line(tmp_path: Path) -> None:
    lines = ['{"made_from":{}}', '{"stop":1,"rejected":{},"kept":[]}', '{"stop":2,"rejected":{},"kept":[{"id":1}]}']
    (tmp_path / "d.jsonl.partial").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"d\.jsonl\.partial, line 3: "):
        FileJournal(tmp_path / "d.jsonl", {}, RECIPE)


def test_what_a_disk_has_no_room_for_is_reported_and_not_counted(tmp_path: Path) -> None:
    file, partial = tmp_path / "d.jsonl", tmp_path / "d.jsonl.partial"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with FileJournal(file, MADE_FROM, RECIPE) as journal:
        journal.add(stretch(0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (partial.stat().st_size + 9, limits[1]))
        try:
            with pytest.raises(RecordError, match=r"d\.jsonl\.partial: what was made could not be added: .*too large"):
                journal.add(stretch(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (journal.stop, len(journal.kept)) == (1, 1)
    assert partial.read_bytes().endswith(b'\n{"stop":2')
    with FileJournal(file, MADE_FROM, RECIPE) as again:
        assert (again.stop, len(again.kept)) == (1, 1)


@pytest.mark.parametrize(
    ("left", "goes_on"),
    [(None, False), ("", False), ("{", True), ('{"made_from":', True), ('{"made_from":{}}\n{"stop"', True)],
)
def test_a_file_is_begun_where_its_journal_is(tmp_path: Path, left: str | None, goes_on: bool) -> None:
    if left is not None:
        (tmp_path / "d.jsonl.partial").write_text(left, encoding="utf-8")
    assert has_journal(tmp_path / "d.jsonl") is goes_on


@pytest.mark.parametrize("error", [StorageError("full"), OSError("read-only")])
def test_a_journal_that_cannot_be_removed_stays(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock_file(path: Path) -> None:
        raise error

    (tmp_path / "d.jsonl.partial").write_text('{"made_from":{}}\n')
    monkeypatch.setattr(journal, "lock_file", lock_file)
    journal.remove_journal(tmp_path / "d.jsonl")
    assert (tmp_path / "d.jsonl.partial").exists()
