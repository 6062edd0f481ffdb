"""Purifying where an output cannot be written: which one is said, and no part of any is left."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foreign import answer, fails, messages, user, works
from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.transcripts.purification import Assignment, FileJob, JobStopped, write_report

MOST = 10_000


@contextmanager
def little_room() -> Iterator[None]:
    """No file can grow beyond MOST bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def source(folder: Path, record: Any, size: int) -> Path:
    """A file of records that are together at least `size` bytes."""
    line = json.dumps(record) + "\n"
    path = folder / "in.jsonl"
    path.write_text(line * (size // len(line) + 1))
    return path


def assignment(inputs: Path, out: Path, **options: Any) -> Assignment:
    return Assignment([inputs], out, False, [inputs.name], Repairer(), **options)


def purify(one: Assignment, *, resume: bool = False) -> None:
    FileJob(one, resume=resume)(lambda *_: None, lambda: False)


CLEAN = messages((user("?" * 1000), works("x = 1"), answer("1")))
REPAIRED = messages((user("?"), fails("f(2)"), answer("no"), works("f(3)"), answer("1")))


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.json", "out.parquet"])
@pytest.mark.parametrize("size", [2 * MOST, 3_000_000], ids=["at the end", "on the way"])
def test_an_output_for_which_there_is_no_room_is_named_and_no_part_is_left(
    tmp_path: Path, size: int, name: str
) -> None:
    given, out = source(tmp_path, CLEAN, size), tmp_path / "out" / name
    if name.endswith((".gz", ".parquet")):  # what cannot be compressed
        given.write_text("".join(json.dumps(CLEAN).replace("?" * 1000, str(7**n)) + "\n" for n in range(500, 900)))
    with little_room(), pytest.raises(RecordError, match=rf"out/{name}(\.partial)? cannot be written: .* are free on"):
        purify(assignment(given, out, audit=tmp_path / "out/audit.jsonl"))
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("size", [2 * MOST, 3_000_000], ids=["at the end", "on the way"])
def test_an_audit_for_which_there_is_no_room_is_named(tmp_path: Path, size: int) -> None:
    given, audit = source(tmp_path, REPAIRED, size), tmp_path / "audit.jsonl"
    out = tmp_path / "out.jsonl.gz"  # which needs next to no room
    with little_room(), pytest.raises(RecordError, match=r"audit\.jsonl\.partial cannot be written"):
        purify(assignment(given, out, audit=audit))
    assert list(tmp_path.iterdir()) == [given]


def test_a_run_that_was_resumed_can_be_resumed_again(tmp_path: Path) -> None:
    given, out = source(tmp_path, CLEAN, 1000), tmp_path / "out.jsonl"
    good = given.read_text()
    given.write_text(good + "{\n")
    one = assignment(given, out)
    with pytest.raises(JobStopped):
        purify(one)
    given.write_text(good * (1 + MOST // 1000))
    state = one.state_path.read_bytes()
    with little_room(), pytest.raises(RecordError, match="cannot be written"):
        purify(one, resume=True)
    assert one.state_path.read_bytes() == state
    purify(one, resume=True)
    assert out.read_text() == given.read_text()


def test_a_report_for_which_there_is_no_room_leaves_nothing(tmp_path: Path) -> None:
    one = assignment(source(tmp_path, CLEAN, 1000), tmp_path / "out.jsonl")
    run = FileJob(one)
    run(lambda *_: None, lambda: False)
    report = tmp_path / "report.json"
    run.counts[0].bad_at += list(range(MOST))
    with little_room(), pytest.raises(RecordError, match=r"report\.json\.partial cannot be written"):
        write_report(report, run)
    assert not list(tmp_path.glob("report*"))


def test_nobody_who_reads_standard_output_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, data: bytes) -> int:
            raise BrokenPipeError

        flush = write

    class Stdout:
        buffer = Gone()

    given = source(tmp_path, CLEAN, 1000)
    monkeypatch.setattr(sys, "stdout", Stdout())
    with pytest.raises(BrokenPipeError):
        purify(assignment(given, Path("-"), audit=tmp_path / "audit.jsonl"))
    assert list(tmp_path.iterdir()) == [given]
