"""Folders and files that are there whole or not at all, and what is cleared away of those that never were."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retcon.core.errors import StorageError
from retcon.runs.folder import RunFolder
from retcon.store.whole import PARTIAL, whole_file, whole_folder, write_whole


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def begin(target: Path, error: BaseException) -> None:
    """A folder that never becomes whole."""
    with whole_folder(target) as partial:
        (partial / "new").touch()
        raise error


def begin_whole(target: Path) -> None:
    with whole_folder(target) as partial:
        (partial / "new").touch()


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


def test_a_folder_is_whole_while_the_one_before_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "final"
    for name in ("old", "new"):
        with monkeypatch.context() as patched, whole_folder(target) as partial:
            for part in ("config", "weights"):
                (partial / f"{name}-{part}").touch()
            if name == "new":
                patched.setattr(shutil, "rmtree", half_removed)
    assert names(target) == ["new-config", "new-weights"]
    with whole_folder(target) as partial:
        (partial / "newest").touch()
    assert names(tmp_path) == ["final", "final/newest"]


def half_removed(folder: Path, **_: object) -> None:
    """As far as a process came that was killed."""
    for part in sorted(folder.glob("*"))[:1]:
        part.unlink()


def test_the_folder_before_goes_back_where_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/old").touch()
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path.name == f"{PARTIAL}final":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(StorageError, match="final could not be written, and is as it was before"):
        begin_whole(tmp_path / "final")
    assert names(tmp_path) == ["final", "final/old"]


@pytest.mark.parametrize("kind", ["a file", "a link"])
def test_what_is_no_folder_is_not_replaced_by_one(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "final"
    if kind == "a file":
        target.touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    before = names(tmp_path)
    with pytest.raises(StorageError, match="final could not be written, and is as it was before"):
        begin_whole(target)
    assert names(tmp_path) == before
    assert target.is_symlink() is (kind == "a link")


@pytest.mark.parametrize("taken", [False, True])
def test_a_run_puts_back_what_a_killed_one_was_about_to_replace(tmp_path: Path, *, taken: bool) -> None:
    for folder in (f"{PARTIAL}old-final/before", "final/new" if taken else f"{PARTIAL}final/new"):
        (tmp_path / folder).mkdir(parents=True)
    with RunFolder(tmp_path).at_work():
        left = [name for name in names(tmp_path) if not name.startswith(".lock")]
    assert left == ["final", "final/new" if taken else "final/before"]


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


def killed(target: Path) -> Path:
    """What a process that was killed while it wrote `target` left."""
    before = {*target.parent.iterdir()}
    begin = "import os, sys, pathlib, retcon.store.whole as w; whole = w.whole_file(pathlib.Path(sys.argv[1]))"
    program = f"{begin}; file = whole.__enter__(); file.write(b'to'); file.flush(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program, str(target)], check=False).returncode == 9
    (left,) = {*target.parent.iterdir()} - before
    return left


def test_a_file_begins_by_clearing_away_what_was_left_of_it_by_a_process_that_is_gone(tmp_path: Path) -> None:
    target = tmp_path / "t[1].jsonl"
    other = tmp_path / f"{PARTIAL}4194304-more-t[1].jsonl"  # nor has this one's number a process
    other.touch()
    killed(target)
    no_file = tmp_path / f"{PARTIAL}4194305-t[1].jsonl"
    no_file.mkdir()
    write_whole(target, "whole")
    assert names(tmp_path) == sorted([other.name, no_file.name, target.name]), "others are left as they are"


def test_a_file_is_its_writers_until_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another machine, where no process has the writer's number, might clear it away in between."""
    replace, seen = Path.replace, []

    def replaced(path: Path, target: Path) -> Path:
        with path.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(target)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replaced)
    write_whole(tmp_path / "a.json", "whole")
    assert seen == [tmp_path / "a.json"]


def test_what_another_process_is_at_is_not_cleared_away(tmp_path: Path) -> None:
    """Neither what a process here has the number of, nor what another machine's has the lock of."""
    target = tmp_path / "a.json"
    living = [tmp_path / f"{PARTIAL}{os.getppid()}-a.json", tmp_path / f"{PARTIAL}{10**12}-a.json"]
    elsewhere = killed(target)
    for path in living:
        path.touch()
    with elsewhere.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_whole(target, "whole")
        assert names(tmp_path) == sorted([*(path.name for path in living), elsewhere.name, "a.json"])
    write_whole(target, "whole")
    assert elsewhere.name not in names(tmp_path)
