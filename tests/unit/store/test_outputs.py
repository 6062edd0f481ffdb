"""Where output may go: by device and inode, whatever the name; over nothing but regular files, and over no input."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from retcon.core.errors import RecordError
from retcon.store.jsonl import write_lines
from retcon.store.lines import LineAppender, Partial
from retcon.store.whole import NO_LOCKS, OutputFile, alone, check_outputs, refuse_finished


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


def test_what_is_written_beside_an_output_is_no_input_either(source: Path) -> None:
    with pytest.raises(RecordError, match=r"in\.jsonl is an input too"):
        check_outputs([OutputFile("-o", Path("in"), ("in.jsonl",))], [source])


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
        lambda: Partial(out),
        lambda: write_lines(out, [b"{}\n"]),
        lambda: LineAppender(out),
    ):
        with pytest.raises(RecordError, match=f"{path} is {kind}"):
            write()
    assert stat.S_IFMT(out.stat().st_mode) == stat.S_IFMT(before)


def test_a_finished_output_stays_unless_told(source: Path) -> None:
    refuse_finished([OutputFile("-o", Path("new.jsonl"))], "--force")
    with pytest.raises(RecordError, match=r"--report in\.jsonl is there already, and finished; --force replaces it"):
        refuse_finished([OutputFile("-o", Path("new.jsonl")), OutputFile("--report", Path("in.jsonl"))], "--force")


def test_where_a_file_system_knows_no_locks_work_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says: list[int] = []

    def flock(*_: object) -> None:
        raise OSError(says[-1], os.strerror(says[-1]))

    monkeypatch.setattr(fcntl, "flock", flock)
    for code in NO_LOCKS:
        says.append(code)
        with alone(tmp_path / "out"):
            pass
    says.append(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), alone(tmp_path / "out"):
        pass
