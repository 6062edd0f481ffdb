"""Trajectory files: what is written is read, what is broken is named, what was there is not lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retcon.core.errors import RecordError, StorageError
from retcon.core.types import Observation, Parent, Segment, Trajectory, Turn
from retcon.store.jsonl import Appender, head, open_appender, read, write
from strategies import trajectories

ONE = Trajectory("a", "k", (Segment("prompt", "é\n", (1,)),), (Turn((Segment("sampled", "x", (2,), (-0.1,)),)),))
TWO = Trajectory("b", "k", (), (), reward=0.0, extra={"new": [1, {"x": None}]})


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst"])
@settings(max_examples=12)
@given(lived=st.lists(trajectories(), max_size=2))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, name: str, lived: list[Trajectory]) -> None:
    path = tmp_path_factory.mktemp("t") / name
    assert write(path, lived) == len(lived)
    assert list(read(path)) == lived
    assert path.read_bytes()[:2] == {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5"}.get(path.suffix, path.read_bytes()[:2])


def tree(id: str, *below: str) -> Trajectory:
    """A root whose children have a child each."""
    children = []
    for name in below:
        leaf = replace(ONE, id=f"{id}/{name}/x", parent=Parent(f"{id}/{name}", 0, "0.0.0"))
        children.append(replace(ONE, id=f"{id}/{name}", parent=Parent(id, 0, "0.0.0"), children=(leaf,)))
    return replace(ONE, id=id, children=tuple(children))


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_children_are_lines_before_their_parent_and_are_read_with_it(tmp_path: Path, name: str) -> None:
    trees = [tree("a", "1", "2"), ONE, tree("b", "1")]
    assert write(tmp_path / name, trees) == 9
    assert list(read(tmp_path / name)) == trees
    assert [one.id for one in head(tmp_path / name, 0).trajectories][:5] == ["a/1/x", "a/1", "a/2/x", "a/2", "a"]


def test_children_whose_parent_was_cut_off_stand_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [tree("a", "1", "2")])
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert [(one.id, len(one.children)) for one in read(path)] == [("a/1", 1), ("a/2", 1)]


def test_a_tree_that_is_added_under_another_name_takes_its_children_along(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for _ in range(2):
        with open_appender(path, "--out", "q") as add:
            add(tree("a", "1"))
    assert list(read(path)) == [tree("q", "1"), tree("q-2", "1")]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [ONE])

    def broken() -> Iterator[Trajectory]:
        yield TWO
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"t\.jsonl could not be written, .*: .*No space left.*make room"):
        write(path, broken())
    assert list(read(path)) == [ONE]
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


def test_numbers_that_json_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(RecordError, match="trajectory n cannot be written as JSON"):
        write(path, [Trajectory("n", "k", (), (), reward=float("nan"))])
    assert list(tmp_path.iterdir()) == []


def test_text_that_is_no_unicode_does_not_lose_the_trajectory(tmp_path: Path) -> None:
    turn = Turn((), observations=(Observation("0.0", "a\ud800b", "ok"),))
    write(tmp_path / "t.jsonl", [Trajectory("s", "k", (), (turn,))])
    (back,) = read(tmp_path / "t.jsonl")
    assert back.turns[0].observations[0].text == "a?b"


def test_a_broken_line_is_named_and_can_be_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [ONE, TWO])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"\n{oops\n" + b'{"id": 1}\n' + b"[" * 100_000 + b"\n" + second)
    reading = read(path)
    assert next(reading) == ONE
    with pytest.raises(RecordError, match=r"t\.jsonl, line 3: not JSON"):
        next(reading)
    bad: list[RecordError] = []
    assert list(read(path, on_bad=bad.append)) == [ONE, TWO]
    assert [str(e).partition(": ")[2][:22] for e in bad] == [
        "not JSON: JSON is malf",
        "not a trajectory: miss",
        "nested too deeply",
    ]


def test_a_line_that_was_cut_off_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [ONE, TWO])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RecordError, match=r"line 2: cut off in the middle \(was its writer stopped\?\)"):
        list(read(path))
    write(tmp_path / "t.gz", [ONE, TWO])
    (tmp_path / "t.gz").write_bytes((tmp_path / "t.gz").read_bytes()[:-12])
    with pytest.raises(RecordError, match=r"t\.gz, line \d: the file cannot be read further"):
        list(read(tmp_path / "t.gz"))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.jsonl does not exist"):
        list(read(tmp_path / "none.jsonl", on_bad=lambda _: None))
    for name in ("a.jsonl", "b.jsonl", "metrics.jsonl", "n.jsonl", "o.jsonl", "retcon.audit.jsonl"):
        (tmp_path / name).touch()
    told = "is a folder; name a file of trajectories: it holds retcon.audit.jsonl, a.jsonl, b.jsonl, n.jsonl, …"
    with pytest.raises(RecordError, match=re.escape(told)):
        list(read(tmp_path, on_bad=lambda _: None))
    with pytest.raises(StorageError, match=r"could not be written, .*No such file.*: put that right and run"):
        write(tmp_path / "none" / "t.jsonl", [ONE])
    with pytest.raises(StorageError, match=r"could not be written, .*name too long.*: put that right and run"):
        write(tmp_path / ("t" * 250), [ONE])
    with pytest.raises(RecordError, match="cannot be opened for writing"):
        Appender(tmp_path / "none" / "t.jsonl")
    for name in ("t.jsonl.gz", "t.jsonl.zst"):
        with pytest.raises(RecordError, match="compressed files cannot be added to"):
            Appender(tmp_path / name)


@pytest.mark.parametrize(("cut", "kept"), [(5, [ONE]), (1, [ONE, TWO])])
def test_an_appender_mends_what_a_killed_one_left(tmp_path: Path, cut: int, kept: list[Trajectory]) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [ONE, TWO])
    path.write_bytes(path.read_bytes()[:-cut])
    with Appender(path) as out:
        out.add(ONE)
    assert list(read(path)) == [*kept, ONE]


def test_mending_finds_the_start_of_a_long_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, [ONE])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "' + b"x" * 200_000)
    with Appender(path):
        pass
    assert path.read_bytes() == whole
