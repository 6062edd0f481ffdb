"""Finding trajectories in a file without reading all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparing import FIX, repaired, trajectory
from retcon.core.errors import RecordError
from retcon.store import jsonl
from retcon.store.jsonl import all_ids, contains_id, find, find_first, head

PLAIN, OTHER, MENDED = trajectory("a/0", FIX), trajectory("ab/0", FIX), repaired("b/0")


@pytest.fixture(params=["some.jsonl", "some.jsonl.gz", "some.jsonl.zst"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An audit of `retcon purify`, which may be compressed with zstd too."""
    path: Path = tmp_path / request.param
    jsonl.write(path, [PLAIN, OTHER, MENDED])
    assert list(jsonl.read(path)) == [PLAIN, OTHER, MENDED]
    return path


def test_the_head_reads_no_more_than_it_shows(tmp_path):
    path = tmp_path / "some.jsonl"
    jsonl.write(path, [PLAIN, OTHER])
    with path.open("a") as out:
        out.write("neither JSON\n\nnor a trajectory\n")
    assert head(path, 1).trajectories == [PLAIN]
    found = head(path, 2)
    assert (found.trajectories, found.more, found.bad) == ([PLAIN, OTHER], 2, []), "nobody looked at the rest"
    assert len(head(path, 0).bad) == 2


def test_one_is_found_by_its_id_or_its_beginning(file):
    assert find(file, "a/0") == PLAIN
    assert find(file, "ab") == OTHER
    assert contains_id(file, "ab/0")
    assert not contains_id(file, "ab")
    assert find_first(file, lambda t: bool(t.turns), having=b'"repair"') == MENDED
    with pytest.raises(RecordError, match="2 ids begin with 'a': a/0, ab/0"):
        find(file, "a")
    with pytest.raises(RecordError, match=r"no trajectory 'ab/1' \(did you mean 'ab/0'\?\)"):
        find(file, "ab/1")
    if file.suffix != ".jsonl":
        file.write_bytes(file.read_bytes()[:-12])
        with pytest.raises(RecordError, match=r"line \d: the file cannot be read further"):
            find(file, "b/0")


def test_ids_are_those_of_the_lines_that_can_be_read(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes(jsonl.line_of(PLAIN) + b"{}\nno JSON\n" + jsonl.line_of(OTHER))
    assert list(all_ids(path)) == ["a/0", "ab/0"]


def test_a_broken_line_before_it_is_named(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_text("{}\n" + jsonl.line_of(PLAIN).decode())
    with pytest.raises(RecordError, match=r"some.jsonl, line 1: not a trajectory: missing prompt"):
        find(path, "a/0")


def test_a_broken_line_after_the_only_one_that_begins_so_changes_nothing(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes(jsonl.line_of(PLAIN) + jsonl.line_of(OTHER) + b'{"id":"a/1","ta')
    assert find(path, "ab") == OTHER
    with pytest.raises(RecordError, match=r"some\.jsonl, line 3: cut off in the middle"):
        find(path, "b")
