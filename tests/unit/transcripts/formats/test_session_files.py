"""Files of sessions as users have them: still being written, begun with images, several of them one after another."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from foreign import FORMATS, REPAIRED, answer, fails, user, works
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecordError, TaskWarning
from retcon.purify.offline import Repairer
from retcon.report.purification import remarks
from retcon.store.jsonl import read
from retcon.train.datasets.demonstrations import read_samples
from retcon.transcripts.detector import BYTES
from retcon.transcripts.purification import Assignment, FileJob, JobStopped
from retcon.transcripts.purifier import Count

CLEAN = (user("?"), works("f()"), answer("1"))
STAYS = (user("?"), fails("f()"), answer("I cannot tell."))
Lines = list[dict[str, Any]]


def session(name: str, steps: Any = REPAIRED, own: str = "s") -> Lines:
    """A session's lines. own: its name, which all its lines have."""
    record = copy.deepcopy(FORMATS[name](steps))
    found: Lines = next(record[key] for key in ("lines", "events", "messages", "contents", "input") if key in record)
    for line in found if own != "s" else ():
        line.update({key: own + line[key] for key in ("uuid", "parentUuid") if line.get(key)}, sessionId=own)
        if "id" in (message := line.get("message", {})):
            message["id"] = own + message["id"]
    return found


def as_lines(items: Any) -> bytes:
    return "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in items).encode()


def run(folder: Path, data: bytes, name: str = "in.jsonl", **options: Any) -> tuple[bytes, Count, Sequence[str]]:
    """What is written, counted and told of one file."""
    source, out = folder / name, folder / f"out-{name}"
    source.write_bytes(data)
    wanted = Assignment([source], out, False, [name], Repairer(), audit=folder / "audit.jsonl", **options)
    purification = FileJob(wanted)
    (count,) = purification(lambda *_: None, lambda: False)
    return out.read_bytes(), count, purification.bad


TORN = b'{"timestamp":"t","ty'


@pytest.mark.parametrize("name", ["claude_code", "codex"])
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_last_line_of_a_session_may_break_off_and_is_told(tmp_path: Path, name: str, jobs: int) -> None:
    lines = session(name)
    (whole := tmp_path / "whole").mkdir()
    expected, _, told = run(whole, as_lines(lines))
    assert not told
    out, count, told = run(tmp_path, as_lines(lines) + TORN, jobs=jobs)
    assert out == expected
    at = len(lines) + 1
    assert (count.transcripts, count.shallow, count.bad, count.bad_at) == (1, 1, 1, [at])
    assert told == [f"{tmp_path / 'in.jsonl'}, line {at}: the session's last line breaks off, and is left out"]
    assert f"1 record could not be read: records {at}" in next(remarks([Path("in.jsonl")], [count]))


@pytest.mark.parametrize(
    ("first", "message"),
    [({"role": "assistant", "content": "A text."}, "line 2: not JSON"), ({"text": "A text."}, "line 2: not JSON"),
     ({"type": "ai", "content": "A text."}, "line 2: not JSON"), ({"note": "none"}, "line 1: no transcript"),
     ({"type": "message", "message": {"role": "assistant", "content": "A text."}}, "line 1: no transcript")],
)  # fmt: skip
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_two_lines_of_which_the_last_is_broken_are_refused_where_they_are_no_session(
    tmp_path: Path, first: dict[str, Any], message: str, end: bytes
) -> None:
    with pytest.raises(JobStopped, match=message):
        run(tmp_path, as_lines([first]) + TORN + end)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_no_other_line_of_a_session_may_be_broken(tmp_path: Path, skip_bad: bool) -> None:
    lines = as_lines(session("codex")).splitlines(keepends=True)
    for at, data in ((16, b"".join(lines) + TORN + b"\n"), (4, b"".join([*lines[:3], TORN + b"\n", *lines[3:], TORN]))):
        with pytest.raises(RecordError, match=rf"in\.jsonl, line {at}: not JSON"):
            run(tmp_path, data, skip_bad=skip_bad)
    with pytest.raises(RecordError, match=r"in\.jsonl, line 6: not JSON"):
        run(tmp_path, b"".join([b"\n", *lines[:4], TORN + b"\n", *lines[4:]]))


def test_a_record_that_breaks_off_is_refused_where_each_is_a_transcript(tmp_path: Path) -> None:
    with pytest.raises(JobStopped, match=r"in\.jsonl, line 2: not JSON"):
        run(tmp_path, as_lines([FORMATS["messages"](REPAIRED)]) + TORN)


@pytest.mark.slow
def test_of_a_packed_session_that_breaks_off_what_stands_before_is_kept_if_that_is_asked_for(tmp_path: Path) -> None:
    lines = as_lines([*session("codex"), *({"type": "event_msg", "payload": {"n": n * 7919}} for n in range(4000))])
    data = gzip.compress(lines)[:-200]
    with pytest.raises(RecordError, match="cannot be read further"):
        run(tmp_path, data, "in.jsonl.gz")
    out, count, told = run(tmp_path, data, "in.jsonl.gz", skip_bad=True)
    written = gzip.decompress(out)
    assert (count.transcripts, count.shallow, count.bad) == (1, 1, 1)
    assert written.splitlines()[-1] in lines.splitlines()
    assert "the rest of this file is left out" in told[0]


def test_a_session_that_breaks_off_is_learnt_from_and_told(tmp_path: Path) -> None:
    (file := tmp_path / "in.jsonl").write_bytes(as_lines(session("claude_code", CLEAN)) + TORN)
    with pytest.warns(TaskWarning, match="line 8: the session's last line breaks off"):
        (sample,) = read_samples(file, Chat(ByteTokenizer(), style="markdown"), vocabulary=ByteTokenizer().size)
    assert any(sample.mask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"),
    [("claude_code", "in.jsonl"), ("codex", "in.jsonl"), ("adk", "in.jsonl"), ("adk", "in.json"),
     ("gemini", "in.jsonl"), ("gemini", "in.json"), ("pydantic_ai", "in.json"), ("langchain_flat", "in.jsonl"),
     ("langchain_flat", "in.json"), ("responses", "in.jsonl")],
)  # fmt: skip
def test_a_transcript_may_begin_with_more_than_the_first_look_takes_in(tmp_path: Path, name: str, file: str) -> None:
    lines = session(name)
    next(line for line in lines if "16" in str(line))["x-image"] = "A" * BYTES
    out, count, _ = run(tmp_path, as_lines(lines) if file == "in.jsonl" else json.dumps(lines).encode(), file)
    assert (count.transcripts, count.calls, count.shallow) == (1, 2, 1)
    assert b"sqroot" not in out
    assert b"A" * BYTES in out


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_a_session_in_which_only_the_user_spoke_is_one(tmp_path: Path, name: str) -> None:
    data = as_lines(session(name, (user("?"),)))
    out, count, _ = run(tmp_path, data)
    assert (out, count.transcripts, count.without_calls) == (data, 1, 1)


@pytest.mark.parametrize(
    "name", ["messages", "openhands", "openhands_sdk", "responses", "gemini", "adk", "pydantic_ai", "bedrock", "atif",
             "smolagents", "langchain_flat", "autogen"]
)  # fmt: skip
def test_a_list_of_messages_or_steps_without_calls_is_one_transcript(tmp_path: Path, name: str) -> None:
    record = FORMATS[name]((user("?"), answer("4")))
    lists = ("messages", "steps", "history", "input", "contents", "events")
    items = next(record[key] for key in lists if key in record)
    data = json.dumps(items, indent=1).encode()
    out, count, _ = run(tmp_path, data, "in.json")
    assert (out, count.transcripts, count.without_calls) == (data, 1, 1)
    _, count, _ = run(tmp_path, json.dumps([record, record]).encode(), "list.json")
    assert count.transcripts == 2, "a list of records is none"


@pytest.mark.parametrize(
    "rows",
    [
        [{"role": "math", "text": "It is 2."}, {"role": "physics", "text": "F=ma"}],
        [{"role": "math", "content": "It is 2."}, {"role": "physics", "content": "F=ma"}],
        [{"role": "assistant", "prompt": "q", "completion": "a"}, {"role": "y", "prompt": "q", "completion": "b"}],
        [{"from": "a@b", "text": "hello"}, {"from": "c@d", "text": "bye"}],
        [{"type": "human", "text": "An essay."}, {"type": "ai", "text": "Another."}],
        [{"role": "user", "value": 0.5, "text": "An essay."}, {"role": "assistant", "value": 1, "text": "Another."}],
        [{"role": "user", "content": "Q1"}, {"role": "user", "content": "Q2"}],
    ],
)
def test_rows_of_a_data_set_that_name_a_role_or_a_type_are_records(tmp_path: Path, rows: Lines) -> None:
    for data, name in ((json.dumps(rows).encode(), "in.json"), (as_lines(rows), "in.jsonl")):
        _, count, _ = run(tmp_path, data, name)
        assert count.transcripts == 2


def test_dumped_messages_of_langchain_are_one_transcript(tmp_path: Path) -> None:
    items = [{"type": "human", "content": "An essay."}, {"type": "ai", "content": "Here."}]
    _, count, _ = run(tmp_path, json.dumps(items).encode(), "in.json")
    assert count.transcripts == 1


def test_sessions_one_after_another_are_a_transcript_each(tmp_path: Path) -> None:
    lines = [*session("claude_code", own="a"), *session("claude_code", CLEAN, "b"), *session("claude_code", STAYS, "c")]
    lines.insert(12, {"type": "summary", "summary": "a root"})  # it is of no session: it stays with the one before it
    out, count, _ = run(tmp_path, as_lines(lines))
    assert (count.transcripts, count.calls, count.failed, count.shallow) == (3, 4, 2, 1)
    assert out.endswith(as_lines(lines[11:]))
    sources = [one.origin.source for one in read(tmp_path / "audit.jsonl") if one.origin]
    at = 1 + next(n for n, line in enumerate(lines) if line.get("sessionId") == "c")
    assert sources == [f"{tmp_path / 'in.jsonl'}, session", f"{tmp_path / 'in.jsonl'}, session from line {at}"]
    assert [one.id for one in read(tmp_path / "audit.jsonl")] == ["in.jsonl:1", f"in.jsonl:{at}"]
    left, count, _ = run(tmp_path, as_lines(lines), "b.jsonl", drop_unrepaired=True)
    assert left == out.removesuffix(as_lines(session("claude_code", STAYS, "c")))
    assert count.dropped == 1


def test_sessions_of_a_file_are_learnt_from_each_for_itself(tmp_path: Path) -> None:
    lines = [line for own in "abc" for line in session("claude_code", CLEAN, own)]
    (file := tmp_path / "in.jsonl").write_bytes(as_lines(lines))
    samples = read_samples(file, Chat(ByteTokenizer(), style="markdown"), vocabulary=ByteTokenizer().size)
    assert [len(sample.ids) for sample in samples] == [len(samples[0].ids)] * 3


def test_what_stands_ahead_of_a_session_without_its_name_is_of_it(tmp_path: Path) -> None:
    first, other = session("claude_code", STAYS, "a"), session("claude_code", own="b")
    after: Lines = [{"type": "file-history-snapshot", "messageId": first[1]["uuid"], "isSnapshotUpdate": True},
                    {"type": "summary", "summary": "a root", "leafUuid": first[-1]["uuid"]}, {"type": "x"}]  # fmt: skip
    ahead: Lines = [{"type": "summary", "summary": "another", "leafUuid": "of another file"},
                    {"type": "file-history-snapshot", "messageId": other[1]["uuid"], "snapshot": {}}]  # fmt: skip
    (apart := tmp_path / "apart").mkdir()
    expected, _, _ = run(apart, as_lines([*ahead, *other]))
    out, count, _ = run(tmp_path, as_lines([*first, *after, *ahead, *other]), drop_unrepaired=True)
    assert (count.transcripts, count.dropped) == (2, 1)
    assert out == expected
    assert out.startswith(as_lines(ahead))


def test_a_run_that_was_interrupted_goes_on_with_the_next_session(tmp_path: Path) -> None:
    data = as_lines([line for own in "abc" for line in session("claude_code", own=own)]) + TORN
    (whole := tmp_path / "whole").mkdir()
    expected, count, told = run(whole, data)
    (source := tmp_path / "in.jsonl").write_bytes(data)
    wanted = Assignment([source], tmp_path / "out.jsonl", False, ["in.jsonl"], Repairer(), audit=tmp_path / "a.jsonl")
    asked = iter([False, True])
    with pytest.raises(JobStopped, match="interrupted"):
        FileJob(wanted)(lambda *_: None, lambda: next(asked))
    (again,) = (going := FileJob(wanted, resume=True))(lambda *_: None, lambda: False)
    assert (tmp_path / "out.jsonl").read_bytes() == expected
    assert (again.transcripts, again.shallow, again.bad) == (count.transcripts, count.shallow, count.bad) == (3, 3, 1)
    assert going.bad == [told[0].replace(str(whole), str(tmp_path))]
