"""Folders and files that are there whole or not at all, and what is cleared away of those that never were."""

from __future__ import annotations

from pathlib import Path

import pytest

from retcon.core.errors import StorageError
from retcon.runs.folder import RunFolder
from retcon.store.whole import PARTIAL, whole_file, whole_folder


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def begin(target: Path, error: BaseException) -> None:
    """A folder that never becomes whole."""
    with whole_folder(target) as partial:
        (partial / "new").touch()
        raise error


def begin_file(target: Path, error: BaseException) -> None:
    with whole_file(target) as file:
        file.write(b"ne")
        raise error


def test_a_folder_takes_the_place_of_another_only_once_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "final"
    with whole_folder(target) as partial:
        (partial / "old").touch()
        assert not target.exists()
    with pytest.raises(StorageError, match=r"final could not be written, and is as it was before"):
        begin(target, OSError(28, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        begin(target, KeyboardInterrupt())
    assert names(tmp_path) == ["final", "final/old"]
    with whole_folder(target) as partial:
        (partial / "inner").mkdir()
        (partial / "inner/new").touch()
        assert names(target) == ["old"]
    assert names(tmp_path) == ["final", "final/inner", "final/inner/new"]


def test_what_a_killed_one_left_is_no_part_of_the_next(tmp_path: Path) -> None:
    (tmp_path / f"{PARTIAL}final").mkdir()
    (tmp_path / f"{PARTIAL}final/torn").touch()
    with whole_folder(tmp_path / "final") as partial:
        (partial / "new").touch()
    assert names(tmp_path) == ["final", "final/new"]


def test_a_file_that_is_given_up_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        begin_file(target, KeyboardInterrupt())
    assert (names(tmp_path), target.read_text()) == (["a.json"], "old")


def test_a_run_begins_by_clearing_away_what_a_killed_one_left_half_written(tmp_path: Path) -> None:
    """Checkpoints of gigabytes that never were would fill the disk."""
    run = RunFolder(tmp_path)
    kept = [run.checkpoint(1), tmp_path / "trajectories"]
    for folder in (*kept, tmp_path / "checkpoints" / f"{PARTIAL}step-000002", tmp_path / f"{PARTIAL}final"):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").touch()
    (tmp_path / f"{PARTIAL}7-run.json").touch()
    (tmp_path / "run.json").touch()
    with run.at_work():
        assert {name for name in names(tmp_path) if not name.startswith(".lock")} == {
            "checkpoints", "checkpoints/step-000001", "checkpoints/step-000001/model.safetensors", "run.json",
            "trajectories", "trajectories/model.safetensors",
        }  # fmt: skip
