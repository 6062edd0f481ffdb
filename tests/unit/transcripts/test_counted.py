"""What a run counts, keeps and leaves out; and which files and settings it goes by."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foreign import FAILED, REPAIRED, answer, fails, messages, ours, user, works
from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError
from retcon.core.types import Observation, RepairRecord, Trajectory, Turn
from retcon.purify.offline import REASONS, Repairer, RepairResult
from retcon.store.jsonl import read
from retcon.store.records import expand
from retcon.transcripts.purification import Assignment, FileJob, JobStopped
from retcon.transcripts.purifier import EXAMPLES, SHOWN, Count

CLEAN = messages((user("?"), works("x = 1"), answer("1")))
LEFT = messages((user("?"), fails("f(2)"), answer("no")))
MENDED = messages(REPAIRED)
BOTH = messages((*REPAIRED, user("and this?"), fails("f(2)"), answer("no")))


def as_lines(records: Sequence[object]) -> list[bytes]:
    return [json.dumps(record).encode() + b"\n" for record in records]


def assignment(folder: Path, records: Sequence[object], **options: Any) -> Assignment:
    (source := folder / "in.jsonl").write_bytes(b"".join(as_lines(records)))
    files = {"audit": folder / "audit.jsonl", "pairs": folder / "pairs.jsonl"}
    return Assignment([source], folder / "out.jsonl", False, [source.name], Repairer(), **{**files, **options})


def run(wanted: Assignment, stop: Callable[[], bool] = lambda: False, *, resume: bool = False) -> Count:
    (count,) = FileJob(wanted, resume=resume)(lambda *_: None, stop)
    return count


def test_what_is_left_out_is_counted_and_stands_in_the_audit(tmp_path: Path) -> None:
    wanted = assignment(tmp_path, [CLEAN, LEFT, MENDED, BOTH], drop_unrepaired=True)
    count = run(wanted)
    first, *_, third, _ = wanted.inputs[0].read_bytes().splitlines(keepends=True)
    out = wanted.out.read_bytes()
    assert (out.startswith(first), out.count(b"\n")) == (True, 2)
    assert (count.transcripts, count.changed, count.dropped, count.shallow) == (4, 2, 2, 2)
    assert dict(count.left) == {"answered": 2}
    assert count.bytes_before == wanted.inputs[0].stat().st_size
    assert count.bytes_after == len(out) < len(first) + len(third)
    assert [(one.id, bool(one.origin and one.origin.record)) for one in read(tmp_path / "audit.jsonl")] == [
        ("in.jsonl:2", False), ("in.jsonl:3", True), ("in.jsonl:4", True),
    ]  # fmt: skip
    pairs = map(json.loads, (tmp_path / "pairs.jsonl").read_text().splitlines())
    assert [pair["id"].partition("/")[0] for pair in pairs] == ["in.jsonl:3", "in.jsonl:4"]


def test_a_report_lists_a_few_of_what_there_are_many_of(tmp_path: Path) -> None:
    records = [*[MENDED] * (EXAMPLES + 1), *[{"neither": n} for n in range(SHOWN + 1)]]
    wanted = assignment(tmp_path, records, skip_bad=True)
    purification = FileJob(wanted)
    (count,) = purification(lambda *_: None, lambda: False)
    assert (count.shallow, len(count.examples)) == (EXAMPLES + 1, EXAMPLES)
    assert (count.bad, len(count.bad_at), len(purification.bad)) == (SHOWN + 1, SHOWN, SHOWN)
    example = count.examples[0]
    assert (example["id"], example["decision"], example["error"]) == ("in.jsonl:1", "shallow", "AttributeError")
    assert str(example["failed"]).strip() == FAILED


def test_failed_calls_are_counted_by_rule_and_by_type() -> None:
    seen = (
        Observation("0", "", "error", "NameError", rule="last-line"), Observation("1", "", "timeout"),
        Observation("2", "", "infrastructure"), Observation("3", "", "ok"),
    )  # fmt: skip
    raw = Trajectory("t", "t", (), (Turn((), (), seen, "call"),))
    count = Count()
    count.found(raw, RepairResult(raw, (), ()))
    assert (count.calls, count.failed) == (4, 2)
    assert (dict(count.rules), dict(count.types)) == ({"last-line": 1, "status": 1}, {"NameError": 1, "timeout": 1})


def test_a_failure_that_was_judged_before_is_one_that_remains(tmp_path: Path) -> None:
    first, later = from_dict(ours([user("?"), fails("f(2)"), answer("no")])), from_dict(ours(REPAIRED))
    judged = replace(first.turns[0], repair=RepairRecord("unrepaired", 0))
    record = to_dict(replace(first, turns=(judged, *first.turns[1:], *later.turns)))
    for drop, dropped in ((True, 1), (False, 0)):
        count = run(assignment(tmp_path, [record], drop_unrepaired=drop))
        assert (count.shallow, count.dropped) == (1, dropped)


def test_ours_keep_on_a_failure_why_it_stays(tmp_path: Path) -> None:
    wanted = assignment(tmp_path, [ours([user("?"), fails("f(2)"), answer("no")])])
    assert run(wanted).changed == 0
    (out,) = read(wanted.out)
    assert out.turns[0].repair is not None
    assert out.turns[0].repair.reason == REASONS["answered"]


@pytest.mark.parametrize(("unknown", "known"), [(1, 0), (1, 1), (2, 2), (1, 2)])
def test_a_file_is_of_an_unknown_format_where_half_of_it_is(tmp_path: Path, unknown: int, known: int) -> None:
    tags = {"role": "assistant", "content": "<search>4</search>\n<information>4</information>"}
    plain = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]}
    records = [*[{"messages": [{"role": "user", "content": "?"}, tags]}] * unknown, *[plain] * known]
    wanted = assignment(tmp_path, records)
    if unknown >= known:
        with pytest.raises(RecordError, match=f"no call can be read, though {unknown} of {unknown + known} record"):
            run(wanted)
    else:
        assert (run(wanted).unread, wanted.out.read_bytes()) == (unknown, wanted.inputs[0].read_bytes())


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"format": "messages"}, "format"), ({"drop_unrepaired": True}, "drop_unrepaired"), ({"pairs": None}, "pairs"),
        ({"audit": None}, "audit"), ({"offline": Repairer(gamma=0.6)}, "gamma"), ({"offline": Repairer(5)}, "attempts"),
        ({"offline": Repairer(state="ignore")}, "state"), ({"skip_bad": True}, ""),
        pytest.param({"jobs": 2}, "", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_run_goes_on_with_what_it_was_begun_with(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    wanted = assignment(tmp_path, [MENDED, LEFT, MENDED])
    with pytest.raises(JobStopped):
        run(wanted, lambda: True)
    now = replace(wanted, **other)
    if named:
        with pytest.raises(RecordError, match=f"is from a run with another {named}; remove it to start over"):
            run(now, resume=True)
        now = wanted
    assert (run(now, resume=True).shallow, wanted.out.read_bytes().count(b"\n")) == (2, 3)


def test_in_a_folder_transcripts_are_read_in_their_order_and_nothing_that_a_run_left_there(tmp_path: Path) -> None:
    names = ("b.jsonl", "a/z.json.gz", "a/y.traj", "c.ndjson", "c.parquet", "d.eval", "e.pt", "f.jsonl.zst")
    others = ("out.audit.jsonl", "out.audit.jsonl.gz", "b.jsonl.partial", "b.jsonl.partial.json", "notes.txt",
              "retcon-purify.partial.json", ".hidden.jsonl", "a/.x.json")  # fmt: skip
    (tmp_path / "a").mkdir()
    for name in (*names, *others):
        (tmp_path / name).touch()
    (tmp_path / "g.jsonl").mkdir()
    assert [name for _, name in expand([str(tmp_path)])] == sorted(names)
    assert [name for _, name in expand([str(tmp_path / "[bf].*l*")])] == [
        "b.jsonl", "b.jsonl.partial", "b.jsonl.partial.json", "f.jsonl.zst",
    ]  # fmt: skip


def test_the_output_is_there_only_once_all_beside_it_is(tmp_path: Path) -> None:
    wanted = assignment(tmp_path, [MENDED])
    assert wanted.audit is not None
    audit = wanted.audit

    def taken() -> bool:
        audit.mkdir()  # by somebody else, while the run is at it
        return False

    with pytest.raises(RecordError, match=r"audit\.jsonl could not be written"):
        run(wanted, taken)
    assert not wanted.out.exists()
