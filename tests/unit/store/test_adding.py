"""One more trajectory for a file: what cannot be kept is refused before there is anything to lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from retcon.core.errors import CheckpointError, RecordError
from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.store.jsonl import open_appender

ONE = Trajectory("x", "a task", (), ())


def add(path: Path) -> str:
    with open_appender(path, "--out", "q") as adds:
        return adds(ONE)


def ids(path: Path) -> list[str]:
    return [one.id for one in jsonl.read(path)]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_each_has_an_id_of_its_own(name: str, tmp_path: Path) -> None:
    assert [add(tmp_path / name) for _ in range(3)] == ["q", "q-2", "q-3"]
    assert ids(tmp_path / name) == ["q", "q-2", "q-3"]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
@pytest.mark.parametrize(("whole", "cut"), [(2, 9), (1, 9), (0, 9), (0, 1)])
def test_a_line_that_a_full_disk_cut_off_is_removed(name: str, whole: int, cut: int, tmp_path: Path) -> None:
    path = tmp_path / name
    left = [jsonl.line_of(ONE)] * whole + [jsonl.line_of(ONE)[:cut]]
    path.write_bytes(b"".join(left))
    add(path)
    assert ids(path) == ["x"] * whole + ["q"]


@pytest.mark.parametrize(
    "foreign", ['{"question": "What?"}\n', '{"question": "What?"}', '{"question": "Wha', "{\n", "[1, 2", "notes"]
)
def test_what_is_no_file_of_trajectories_stays_as_it_is(foreign: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(foreign)
    with pytest.raises(
        RecordError, match=r"--out .*notes\.jsonl: it is not a file of trajectories, and stays unchanged"
    ):
        add(path)
    assert path.read_text() == foreign


def test_two_at_once_do_not_take_one_id(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with open_appender(path, "--out", "q") as first:
        with pytest.raises(CheckpointError, match="another command is at work on"):
            add(path)
        assert first(ONE) == "q"
    assert add(path) == "q-2"


def test_a_file_is_made_only_for_what_is_added(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    for name in ("new.jsonl", "new.jsonl.gz", "empty.jsonl"):
        with pytest.raises(KeyboardInterrupt), open_appender(tmp_path / name, "--out", "q"):
            raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["empty.jsonl"]


def test_a_compressed_file_of_a_plain_name_is_refused_at_once(tmp_path: Path) -> None:
    add(tmp_path / "t.jsonl.gz")
    path = (tmp_path / "t.jsonl.gz").rename(tmp_path / "t.jsonl")
    before = path.read_bytes()
    with (
        pytest.raises(RecordError, match=r"--out .*t\.jsonl: it is compressed but "),
        open_appender(path, "--out", "q"),
    ):
        pytest.fail("it began")
    assert path.read_bytes() == before
    path.write_bytes(before + b"\n{")  # as a line that was cut off ends
    with pytest.raises(RecordError, match="compressed files cannot be added to"):
        jsonl.Appender(path)
    assert path.read_bytes() == before + b"\n{"
