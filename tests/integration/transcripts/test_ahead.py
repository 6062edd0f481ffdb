"""Purifying with several processes: what is written, counted and refused is what one process would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import msgspec
import pytest

from foreign import FORMATS, REPAIRED, Step, fails
from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.transcripts.purification import Assignment, FileJob, JobStopped, RecordsLost, write_report

CLEAN = (Step("user", "?"), Step("call", "so", "x = 1", "1"), Step("answer", "1"))
LEFT = (Step("user", "?"), fails("f(2)"), Step("answer", "no"))


def job(folder: Path, records: list[bytes], jobs: int, **options: Any) -> Assignment:
    source = folder / "in.jsonl"
    source.write_bytes(b"".join(line + b"\n" for line in records))
    out = folder / f"{jobs}.jsonl"
    return Assignment(
        [source], out, False, ["in.jsonl"], Repairer(), audit=out.with_suffix(".audit"),
        pairs=out.with_suffix(".pairs"), jobs=jobs, **options,
    )  # fmt: skip


def some(count: int) -> list[bytes]:
    steps = (CLEAN, REPAIRED, LEFT)
    return [msgspec.json.encode({**FORMATS["mint"](steps[n % 3]), "id": n}) for n in range(count)]


def files(one: Assignment) -> list[bytes]:
    return [p.read_bytes() for p in (one.out, one.audit, one.pairs) if p is not None]


def never() -> bool:
    return False


def test_two_processes_write_and_count_what_one_does(tmp_path: Path) -> None:
    made = {}
    for jobs in (1, 2):
        one = job(tmp_path, some(200), jobs)
        counts = FileJob(one)(lambda *_: None, never)
        made[jobs] = (files(one), [c.to_dict() for c in counts])
    assert made[1] == made[2]


def both_ways() -> dict[str, Any]:
    """A record of two formats, which alone would be read as that of a tag, and beside Markdown as Markdown."""
    history = FORMATS["mint"](REPAIRED)["state"]["history"]
    history[1]["content"] = "```python\nplanned()\n```\n" + history[1]["content"]
    return {"messages": history}


@pytest.mark.parametrize("given", ["auto", "retcon.transcripts.formats.notations:MINT"])
def test_processes_go_by_the_format_that_the_file_has(tmp_path: Path, given: str) -> None:
    records = [msgspec.json.encode(FORMATS["markdown" if given == "auto" else "mint"](REPAIRED))] * 150
    records[70:75] = [msgspec.json.encode(both_ways())] * 5
    made = {}
    for jobs in (1, 2):
        one = job(tmp_path, records, jobs, format=given)
        (count,) = FileJob(one)(lambda *_: None, never)
        made[jobs] = (files(one), count.to_dict())
    assert made[1] == made[2]
    assert made[1][1]["formats"] == {"markdown" if given == "auto" else "mint": 150}


def test_what_nothing_reads_is_counted_and_named_by_several_processes_too(tmp_path: Path) -> None:
    tags = {"role": "assistant", "content": "<search>4</search>\n<information>4</information>"}
    records = some(200)
    for n in range(5, 200, 7):
        records[n] = msgspec.json.encode({"messages": [{"role": "user", "content": "?"}, tags]})
    records[60] = records[150] = b'{"neither": 1}'
    told = []
    for jobs in (1, 2):
        one = job(tmp_path, records, jobs, skip_bad=True)
        (count,) = FileJob(one)(lambda *_: None, never)
        told.append((files(one), count.to_dict()))
        assert (count.unread, len(count.unread_at), count.bad_at) == (28, 20, [61, 151])
    assert told[0] == told[1]


def test_a_run_that_was_stopped_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    whole = job(tmp_path, some(150), 1)
    expected = [c.to_dict() for c in FileJob(whole)(lambda *_: None, never)]
    one = job(tmp_path, some(150), 2)
    with pytest.raises(JobStopped) as stopped:
        FileJob(one)(lambda *_: None, after(101))
    assert stopped.value.kept is not None
    assert json.loads(stopped.value.kept.read_bytes())["records"] == 101
    counts = FileJob(replace(one, jobs=1), resume=True)(lambda *_: None, never)
    assert files(one) == files(whole)
    assert [c.to_dict() for c in counts] == expected


def test_a_report_says_with_what_it_was_made(tmp_path: Path) -> None:
    run = FileJob(replace(job(tmp_path, some(3), 1, skip_bad=True), audit=None))
    run(lambda *_: None, never)
    write_report(tmp_path / "r.json", run)
    options = json.loads((tmp_path / "r.json").read_bytes())["options"]
    assert (options["audit"], options["pairs"], options["skip_bad"]) == (None, str(tmp_path / "1.pairs"), True)


def test_a_bad_record_is_named_and_what_was_done_before_it_is_kept(tmp_path: Path) -> None:
    records = some(130)
    records[99] = records[119] = b'{"neither": 1}'
    told = []
    for jobs in (1, 2):
        one = job(tmp_path, records, jobs)
        with pytest.raises(JobStopped) as stopped:
            FileJob(one)(lambda *_: None, never)
        assert isinstance(stopped.value.__cause__, RecordError)
        assert stopped.value.kept is not None
        state = json.loads(stopped.value.kept.read_bytes())
        told.append((str(stopped.value), state["records"], state["counts"], state["sizes"]))
    assert told[0] == told[1]
    assert "line 100:" in told[0][0]
    assert "so are 2 of the first 130 records: 100, 120" in told[0][0]


@pytest.mark.parametrize("asked", [False, True])
def test_where_a_process_is_killed_what_was_done_is_kept_and_whoever_asked_for_it_is_told_of_no_error(
    asked: bool, tmp_path: Path
) -> None:
    one = job(tmp_path, some(600), 2)
    killed: list[int | None] = []

    def stop() -> bool:
        if not killed:
            for process in active_children():
                process.kill()
                process.join()
                killed.append(process.pid)
        # not between two records: whether it was asked is told once the processes are missed
        return asked and isinstance(sys.exc_info()[1], RecordsLost)

    with pytest.raises(JobStopped) as stopped:
        FileJob(one)(lambda *_: None, stop)
    assert isinstance(stopped.value.__cause__, RecordsLost) is not asked
    assert one.inputs[0] not in {fd.readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    assert stopped.value.kept is not None
    assert json.loads(stopped.value.kept.read_bytes())["records"] >= 1
    FileJob(replace(one, jobs=1), resume=True)(lambda *_: None, never)
    assert one.out.read_bytes().count(b"\n") == 600


def after(records: int) -> Callable[[], bool]:
    asked = iter(range(records))
    return lambda: next(asked, records - 1) == records - 1
