"""Folders and files that are there whole or not at all, and what is cleared away of those that never were."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import RecordError, StorageError
from retcon.runs.folder import RunFolder
from retcon.store import lines as module
from retcon.store.fingerprint import files_fingerprint, fingerprint, ids_fingerprint
from retcon.store.jsonl import write_lines
from retcon.store.lines import LineAppender, PartialFile
from retcon.store.whole import (
    NO_LOCKS,
    PARTIAL,
    OutputFile,
    check_not_finished,
    check_outputs,
    lock_folder,
    whole_file,
    whole_folder,
    write_whole,
)
from retcon.train.demos.making import FileJournal


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


@pytest.mark.parametrize("taken", [False, True])
def test_a_run_puts_back_what_a_killed_one_was_about_to_replace(tmp_path: Path, *, taken: bool) -> None:
    for folder in (f"{PARTIAL}old-final/before", "final/new" if taken else f"{PARTIAL}final/new"):
        (tmp_path / folder).mkdir(parents=True)
    with RunFolder(tmp_path).at_work():
        left = [name for name in names(tmp_path) if not name.startswith(".lock")]
    assert left == ["final", "final/new" if taken else "final/before"]


def test_a_file_that_is_given_up_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        begin_file(target, KeyboardInterrupt())
    assert (names(tmp_path), target.read_text()) == (["a.json"], "old")


def killed(target: Path) -> Path:
    """What a process that was killed while it wrote `target` left."""
    before = {*target.parent.iterdir()}
    begin = "import os, sys, pathlib, retcon.store.whole as w; whole = w.whole_file(pathlib.Path(sys.argv[1]))"
    program = f"{begin}; file = whole.__enter__(); file.write(b'to'); file.flush(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", program, str(target)], check=False).returncode == 9
    (left,) = {*target.parent.iterdir()} - before
    return left


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


# Files beside their place until they are whole: one process at a time writes one.


def test_what_another_command_finishes_at_that_moment_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened before it was put in its place, locked after."""
    path = tmp_path / "out.jsonl"
    first = PartialFile(path)
    first.out.write(b"{}\n")
    try_lock = module.try_lock

    def late(file: object) -> bool:
        first.commit()
        return try_lock(file)

    monkeypatch.setattr(module, "try_lock", late)
    with pytest.raises(RecordError, match="another command is writing"):
        PartialFile(path)
    assert path.read_bytes() == b"{}\n"


def test_a_journal_of_demonstrations_is_nobody_elses_to_begin_anew(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with FileJournal(file, {"run": {"seed": 0}}, load_recipe(None)):
        pass
    left = file.with_name("out.jsonl.partial")
    made = left.read_bytes()
    with pytest.raises(
        RecordError, match=r"out\.jsonl\.partial holds the work of a stopped `retcon demos … --out .*out\.jsonl`"
    ):
        PartialFile(file)
    assert left.read_bytes() == made
    left.unlink()
    PartialFile(file).discard()


# Where output may go: by device and inode, whatever the name; over nothing but regular files, and over no input.


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")
    os.link(path, tmp_path / "hard.jsonl")
    (tmp_path / "soft.jsonl").symlink_to(path)
    (tmp_path / "folder").symlink_to(tmp_path)
    return path


@pytest.mark.parametrize(
    "name", ["in.jsonl", "./in.jsonl", "{}/in.jsonl", "hard.jsonl", "soft.jsonl", "folder/in.jsonl", "x/../in.jsonl"]
)
def test_an_input_is_no_output_by_any_name(source: Path, name: str) -> None:
    Path("x").mkdir()
    out = Path(name.format(source.parent))
    for given in (source, Path("in.jsonl")):
        with pytest.raises(RecordError, match=r"-o .*is an input too"):
            check_outputs([OutputFile("-o", out)], [given])


@pytest.mark.parametrize("second", ["out.jsonl", "./out.jsonl", "folder/out.jsonl"])
def test_two_outputs_that_are_one_are_refused_though_neither_is_there(source: Path, second: str) -> None:
    with pytest.raises(RecordError, match=r"--audit .* and -o .* are one file"):
        check_outputs([OutputFile("-o", Path("out.jsonl")), OutputFile("--audit", Path(second))], [source])
    check_outputs([OutputFile("-o", Path("out.jsonl")), OutputFile("--audit", Path("other.jsonl"))], [source])


def test_two_outputs_in_a_folder_that_is_not_there_are_compared_too(source: Path) -> None:
    outputs = [OutputFile("-o", Path("new/deep/a")), OutputFile("--report", source.parent / "new" / "deep" / "a")]
    with pytest.raises(RecordError, match="are one file"):
        check_outputs(outputs, [source])


@pytest.mark.parametrize(("path", "kind"), [("/dev/full", "a device"), ("pipe", "a pipe"), ("some", "a folder")])
def test_only_regular_files_are_written_over(source: Path, path: str, kind: str) -> None:
    os.mkfifo("pipe")
    Path("some").mkdir()
    out = Path(path)
    before = out.stat().st_mode
    for write in (
        lambda: check_outputs([OutputFile("-o", out)]),
        lambda: PartialFile(out),
        lambda: write_lines(out, [b"{}\n"]),
        lambda: LineAppender(out),
    ):
        with pytest.raises(RecordError, match=f"{path} is {kind}"):
            write()
    assert stat.S_IFMT(out.stat().st_mode) == stat.S_IFMT(before)


def test_a_finished_output_stays_unless_told(source: Path) -> None:
    check_not_finished([OutputFile("-o", Path("new.jsonl"))], "--force")
    with pytest.raises(RecordError, match=r"--report in\.jsonl is there already, and finished; --force replaces it"):
        check_not_finished([OutputFile("-o", Path("new.jsonl")), OutputFile("--report", Path("in.jsonl"))], "--force")


def test_where_a_file_system_knows_no_locks_work_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says: list[int] = []

    def flock(*_: object) -> None:
        raise OSError(says[-1], os.strerror(says[-1]))

    monkeypatch.setattr(fcntl, "flock", flock)
    for code in NO_LOCKS:
        says.append(code)
        with lock_folder(tmp_path / "out"):
            pass
    says.append(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), lock_folder(tmp_path / "out"):
        pass


@pytest.mark.parametrize(
    "weights",
    ["model.safetensors", "model-00002-of-00002.safetensors", "pytorch_model.bin", "pytorch_model-00002-of-00002.bin"],
)
def test_other_weights_are_another_model(weights: str, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", weights):
        (tmp_path / name).write_bytes(b"{}")
    before = fingerprint(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"of whoever trained it")
    assert fingerprint(tmp_path) == before
    (tmp_path / weights).write_bytes(b"trained on")
    assert fingerprint(tmp_path) != before


def test_files_are_identified_by_what_they_hold_and_their_order_and_not_by_their_names(tmp_path: Path) -> None:
    """What a run goes on from: other demonstrations make another run."""
    one, other, copy = (tmp_path / name for name in ("one", "other", "copy"))
    for file, text in ((one, "1"), (other, "2"), (copy, "1")):
        file.write_text(text)
    found = {files_fingerprint(files) for files in ([one], [one, other], [other, one], [one, other, other], [other])}
    assert len(found) == 5
    assert files_fingerprint([one, other]) == files_fingerprint([copy, other])
    assert files_fingerprint([one]) == fingerprint(one)


def test_ids_are_told_by_their_rows() -> None:
    found = {ids_fingerprint(rows) for rows in ([[1, 2], [3]], [[1], [2, 3]], [[3], [1, 2]], [[1, 2, 3]], [[1, 2, -3]])}
    assert len(found) == 5
    assert ids_fingerprint(iter([(1, 2), (3,)])) == ids_fingerprint([[1, 2], [3]])
