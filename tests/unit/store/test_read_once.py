"""Files that stand plain and compressed side by side, as `gzip -k` leaves them: one of them is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparing import repaired
from retcon.report.runs import showcase_in
from retcon.runs.folder import RunFolder
from retcon.store import jsonl
from retcon.store.compression import drop_duplicates, drop_duplicates_and_warn
from retcon.store.records import expand


def test_the_plain_one_is_read_then_gzip_and_what_stands_alone_as_it_is() -> None:
    names = ["a.jsonl.gz", "a.jsonl", "a.jsonl.zst", "b.jsonl.zst", "b.jsonl.gz", "c.jsonl.zst", "d/a.jsonl.gz", "a"]
    read = drop_duplicates(map(Path, names))
    assert [str(path) for path in read] == ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "d/a.jsonl.gz", "a"]
    with pytest.warns(UserWarning, match=r"^not read, as the same name .*: a\.jsonl\.gz, and 2 more$"):
        assert drop_duplicates_and_warn(map(Path, names)) == read


def test_a_folder_is_purified_without_them(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.jsonl.gz", "b.jsonl.gz"):
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=r"not read, .*: .*/a\.jsonl\.gz$"):
        assert [name for _, name in expand([str(tmp_path)])] == ["a.jsonl", "b.jsonl.gz"]
    assert [name for _, name in expand([str(tmp_path / "a*")])] == ["a.jsonl", "a.jsonl.gz"], "they were asked for"


def test_what_lies_where_the_output_goes_is_not_told_as_standing_twice(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in ("a.jsonl", "b.jsonl.gz", "out/a.jsonl", "out/b.jsonl", "out/b.jsonl.gz"):
        (tmp_path / name).touch()
    with pytest.warns(
        UserWarning, match=r"^not read, as the output goes to .*: 1 file there, such as .*/out/b\.jsonl$"
    ):
        found = list(expand([str(tmp_path)], tmp_path / "out"))
    assert [name for _, name in found] == ["a.jsonl", "b.jsonl.gz"]


def test_what_a_run_that_went_on_wrote_is_shown_and_not_what_was_compressed_before(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    for name, id in (("step-000001.jsonl", "new/0"), ("step-000001.jsonl.gz", "old/0")):
        jsonl.write(tmp_path / "trajectories" / name, [repaired(id)])
    found = showcase_in(tmp_path)
    assert found is not None
    assert (found[0].id, found[1].name) == ("new/0", "step-000001.jsonl")


def test_steps_that_are_taken_again_are_forgotten_compressed_too(tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    for name in ("step-000001.jsonl.gz", "step-000002.jsonl", "step-000002.jsonl.gz", "step-000003.jsonl.zst"):
        (tmp_path / "trajectories" / name).touch()
    RunFolder(tmp_path).cut(1)
    assert [path.name for path in (tmp_path / "trajectories").iterdir()] == ["step-000001.jsonl.gz"]
