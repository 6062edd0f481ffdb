"""Files whose lines are the events of one transcript, as Claude Code and Codex keep their sessions."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from foreign import FORMATS, NAMES, REPAIRED, answer, fails, messages, user, works
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecordError
from retcon.purify.offline import Repairer
from retcon.store.jsonl import read
from retcon.train.datasets.demonstrations import read_samples
from retcon.transcripts.purification import Assignment, FileJob, JobStopped
from retcon.transcripts.purifier import Count
from retcon.transcripts.registry import find_formats

CLEAN = (user("?"), works("f()"), answer("1"))
Lines = list[dict[str, Any]]


def session(name: str, steps: Any = REPAIRED) -> Lines:
    record = copy.deepcopy(FORMATS[name](steps))
    found: Lines = next(record[key] for key in ("lines", "events", "messages", "contents") if key in record)
    return found


def as_lines(items: Any, end: str = "\n") -> bytes:
    return "".join(json.dumps(item, separators=(",", ":")) + end for item in items).encode()


def run(folder: Path, files: dict[str, bytes], out: str = "out/", **options: Any) -> tuple[bytes, list[Count]]:
    paths = [folder / name for name in files]
    for path, data in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    into = out.endswith("/")
    assignment = Assignment(
        paths, folder / out, into, [*files], Repairer(), audit=folder / "audit.jsonl", **options
    )  # fmt: skip
    counts = FileJob(assignment)(lambda *_: None, lambda: False)
    written = folder / out
    return ((written / next(iter(files))) if into else written).read_bytes(), counts


@pytest.mark.parametrize("name", ["claude_code", "codex", "adk", "langchain_flat", "gemini"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_lines_of_a_session_are_one_transcript(tmp_path: Path, name: str, end: str, jobs: int) -> None:
    items = session(name)
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(items, end)}, jobs=jobs)
    assert (count.transcripts, count.calls, count.shallow) == (1, 2, 1)
    assert [*count.formats] == [NAMES.get(name, name)]
    left = out.splitlines(keepends=True)
    assert b"sqroot" not in out
    assert len(left) < len(items)
    same = [line for line in left if line in as_lines(items, end).splitlines(keepends=True)]
    assert len(left) - len(same) <= 3  # all others are the very bytes
    (trajectory,) = read(tmp_path / "audit.jsonl")
    assert trajectory.origin is not None
    assert (trajectory.origin.source, trajectory.origin.record) == (f"{tmp_path / 'in.jsonl'}, session", items)


@pytest.mark.parametrize("name", ["claude_code", "codex"])
def test_a_session_without_a_repair_is_copied(tmp_path: Path, name: str) -> None:
    for n, steps in enumerate((CLEAN, (user("?"), answer("4")))):
        folder = tmp_path / str(n)
        folder.mkdir()
        data = b"\n".join(json.dumps(line, indent=None).encode() for line in session(name, steps))  # no end of line
        out, (count,) = run(folder, {"in.jsonl": data})
        assert out.removesuffix(b"\n") == data
        assert (count.transcripts, count.calls, count.without_calls) == (1, 1 - n, n)


def test_a_line_with_a_text_of_its_own_does_not_make_the_others_less_than_a_session(tmp_path: Path) -> None:
    fenced = "```python\nf()\n```\n```output\n1\n```"
    lines = [{"type": "system", "content": fenced, "uuid": "s", "parentUuid": None}, *session("claude_code")]
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(lines)})
    assert (count.transcripts, count.shallow, [*count.formats]) == (1, 1, ["claude-code"])
    assert out.startswith(as_lines(lines[:2]))


def test_a_file_with_a_transcript_in_a_line_is_none(tmp_path: Path) -> None:
    lines = [messages(CLEAN), *session("claude_code")]
    with pytest.raises(JobStopped, match="line 2: no transcript of any known format"):
        run(tmp_path, {"in.jsonl": as_lines(lines)})


def test_sessions_are_not_joined(tmp_path: Path) -> None:
    data = as_lines(session("codex"))
    with pytest.raises(RecordError, match="a session keeps its lines to itself; give a folder"):
        run(tmp_path, {"a.jsonl": data, "b.jsonl": data}, "out.jsonl")
    with pytest.raises(RecordError, match="a session keeps its lines to itself"):
        run(tmp_path, {"a.jsonl": data}, "out.parquet")


def test_a_session_with_a_line_that_is_broken_is_refused_with_its_number(tmp_path: Path) -> None:
    data = as_lines(session("codex")) + b'{"timestamp": "t", "ty\n'
    with pytest.raises(RecordError, match=r"in\.jsonl, line 16: not JSON"):
        run(tmp_path, {"in.jsonl": data})


def test_a_session_is_learnt_from(tmp_path: Path) -> None:
    for name in ("claude_code", "codex"):
        file = tmp_path / f"{name}.jsonl"
        file.write_bytes(as_lines(session(name, CLEAN)))
        (sample,) = read_samples(file, Chat(ByteTokenizer(), style="markdown"), vocabulary=ByteTokenizer().size)
        assert any(sample.mask)


def test_the_chain_of_claude_code_s_lines_is_kept(tmp_path: Path) -> None:
    items = [*session("claude_code"), {"type": "summary", "summary": "roots", "leafUuid": "u4"}]
    out, _ = run(tmp_path, {"in.jsonl": as_lines(items)})
    lines = [json.loads(line) for line in out.splitlines()]
    chain = [line for line in lines if "uuid" in line]
    assert [line["parentUuid"] for line in chain] == [None, *(line["uuid"] for line in chain[:-1])]
    assert [line["uuid"] for line in chain] == ["u1", "u2", "u7", "u8", "u10"]
    assert [line["message"].get("id") for line in chain] == [None, "msg_1", "msg_1", None, "msg_3"]
    assert lines[-1]["leafUuid"] == "u2"
    assert chain[3] == {**items[8], "parentUuid": "u7"}


def test_what_a_user_went_back_from_and_a_subagent_s_lines_stay(tmp_path: Path) -> None:
    items = session("claude_code")
    asked = items[1]
    again = {**asked, "uuid": "v1", "message": {"role": "user", "content": "the root of 9?"}}
    first = {**asked, "parentUuid": "u0"}
    later = [{**line, "uuid": f"v{n}"} for n, line in enumerate(session("claude_code", CLEAN)[2:], 2)]
    back = [items[0], first, *items[2:], {**again, "parentUuid": "u0"}, *later]
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(back)})
    assert out == as_lines(back)
    assert (count.calls, count.failed) == (1, 0)
    aside = [{**line, "isSidechain": True} for line in items if "uuid" in line]
    whole = [*session("claude_code", CLEAN), *aside]
    out, (count,) = run(tmp_path, {"b.jsonl": as_lines(whole)})
    assert out == as_lines(whole)
    assert (count.calls, count.failed) == (1, 0)
    out, (count,) = run(tmp_path, {"c.jsonl": as_lines(aside)})  # a subagent's own file
    assert (count.calls, count.shallow) == (2, 1)


def of_session(name: str, *steps: Any, after: str | None = None) -> Lines:
    """A session of its own. after: the line of another that it goes on from."""
    lines = [line for line in session("claude_code", steps) if "uuid" in line]
    for line in lines:
        line |= {
            "sessionId": name,
            "uuid": name + line["uuid"],
            "parentUuid": line["parentUuid"] and name + line["parentUuid"],
        }
        if "id" in line["message"]:
            line["message"]["id"] = name + line["message"]["id"]
    lines[0]["parentUuid"] = after
    return lines


@pytest.mark.parametrize("at", [0, 1])
def test_a_call_of_another_session_is_no_fix(tmp_path: Path, at: int) -> None:
    asked, broken, mended, told = REPAIRED
    begun, rest = of_session("a", asked, broken), of_session("b", asked, mended, told)
    lines = [*rest[1 - at : 1], *begun, *rest[1:]]  # by time, or what was asked is not there
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(lines)})
    assert (count.transcripts, count.calls, count.failed, count.shallow) == (2 - at, 2, 1, 0)
    assert out == as_lines(lines)
    resumed = [*begun, *of_session("b", mended, told, after=begun[-1]["uuid"])]
    _, (count,) = run(tmp_path, {"resumed.jsonl": as_lines(resumed)})
    assert (count.calls, count.failed, count.shallow) == (2, 1, 1), "one that goes on under another name is the same"


def test_sessions_in_one_file_are_each_repaired(tmp_path: Path) -> None:
    asked, _, mended, told = REPAIRED
    first, other = of_session("a", *REPAIRED), of_session("b", asked, mended, told)[1:]
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines([*first, *other])})
    assert (count.calls, count.failed, count.shallow) == (3, 1, 1)
    assert out.endswith(as_lines(other))
    alone, _ = run(tmp_path, {"alone.jsonl": as_lines(first)}, "alone/")
    assert out == alone + as_lines(other)


def test_a_call_that_the_user_rejected_and_an_answer_of_no_model_are_neither_failure_nor_words(tmp_path: Path) -> None:
    steps = (user("?"), fails("f()"), works("g()"), answer("API Error"))
    items = session("claude_code", steps)
    for line in items:
        if "Traceback" in str(line.get("toolUseResult")):
            line["toolUseResult"] = "User rejected tool use"
    items[-1]["message"]["model"] = "<synthetic>"
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(items)})
    assert out == as_lines(items)
    assert (count.calls, count.failed) == (2, 0)


@pytest.mark.parametrize(
    "said",
    [
        "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file …)",
        "[Request interrupted by user for tool use]",
        "Claude requested permissions to use Bash, but you haven't granted it yet.",
        "<tool_use_error>Cancelled: parallel tool call Bash(f) errored</tool_use_error>",
    ],
)
def test_a_call_that_was_never_made_did_not_fail(tmp_path: Path, said: str) -> None:
    lines = claude(
        ("assistant", "m1", use("t1", BROKEN)),
        ("user", None, [{**gave("t1", BROKEN)[0], "content": said, "is_error": True}]),
        ("assistant", "m2", use("t2", MENDED)), ("user", None, gave("t2", MENDED)),
    )  # fmt: skip
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(lines)})
    assert (out, count.calls, count.failed) == (as_lines(lines), 2, 0)


def test_an_event_of_codex_that_repeats_what_was_cut_is_emptied(tmp_path: Path) -> None:
    said = "The earlier code failed with an error. The root is plausible."
    items = session("codex", (*REPAIRED[:-1], answer(said)))
    repeated = [{"type": "agent_message", "message": said}, {"type": "agent_message", "message": "other"}]
    items += [{"timestamp": "t", "type": "event_msg", "payload": one} for one in repeated]
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(items)})
    lines = [json.loads(line) for line in out.splitlines()]
    assert count.shallow == 1
    assert lines[-3]["payload"]["content"][0]["text"] == "The root is plausible."
    assert [line["payload"]["message"] for line in lines[-2:]] == ["", "other"]
    assert next(line["payload"].get("message") for line in lines if line["type"] == "event_msg") == "let me see"


def claude(*lines: tuple[str, str | None, Any]) -> Lines:
    """Lines of a session, each after the one before: the message's id, whose it is, and its content or what it is."""
    out: Lines = [{"type": "user", "uuid": "u0", "parentUuid": None, "message": {"role": "user", "content": "?"}}]
    for n, (role, own_id, content) in enumerate(lines, 1):
        chain = {"uuid": f"u{n}", "parentUuid": f"u{n - 1}", "sessionId": "s", "isSidechain": False, "type": role}
        if role in ("user", "assistant"):
            out.append({**chain, "message": {"role": role, "content": content} | ({"id": own_id} if own_id else {})})
        else:
            out.append({**chain, **content})
    return out


def use(own_id: str, step: Any) -> list[Any]:
    return [{"type": "tool_use", "id": own_id, "name": "mcp__python__run", "input": {"code": step.code}}]


def gave(own_id: str, step: Any) -> list[Any]:
    failed = {"is_error": True} if "Traceback" in step.output else {}
    return [{"type": "tool_result", "tool_use_id": own_id, "content": step.output, **failed}]


_, BROKEN, MENDED, _ = REPAIRED


def test_a_call_beside_one_that_failed_is_no_fix_though_its_line_stands_after_the_result(tmp_path: Path) -> None:
    lines = claude(
        ("assistant", "m1", use("t1", BROKEN)), ("user", None, gave("t1", BROKEN)),
        ("assistant", "m1", use("t2", MENDED)), ("user", None, gave("t2", MENDED)),
        ("assistant", "m2", [{"type": "text", "text": "4"}]),
    )  # fmt: skip
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(lines)})
    assert (count.calls, count.failed, count.shallow, count.deep) == (2, 1, 0, 0)
    assert out == as_lines(lines)
    (claude_code,) = find_formats("claude-code")
    turn = claude_code.read(lines, "s").trajectories[0].turns[0]
    assert [(call.id, seen.status) for call, seen in zip(turn.calls, turn.observations, strict=True)] == [
        ("t1", "error"), ("t2", "ok"),
    ]  # fmt: skip


def test_what_a_user_typed_while_tools_ran_stays(tmp_path: Path) -> None:
    queued = {"attachment": {"type": "queued_command", "prompt": "use sqrt", "commandMode": "prompt"}}
    lines = claude(
        ("assistant", "m1", use("t1", BROKEN)), ("user", None, gave("t1", BROKEN)), ("attachment", None, queued),
        ("assistant", "m2", use("t2", MENDED)), ("user", None, gave("t2", MENDED)),
    )  # fmt: skip
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(lines)})
    assert (count.failed, count.shallow) == (1, 0)
    assert out == as_lines(lines)


def test_no_repair_of_codex_spans_what_stands_for_all_before_it(tmp_path: Path) -> None:
    items = session("codex")
    after = next(n for n, item in enumerate(items) if "Traceback" in str(item)) + 1
    compacted = {"timestamp": "t", "type": "compacted", "payload": {"message": "so far", "replacement_history": []}}
    lines = [*items[:after], compacted, *items[after:]]
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(lines)})
    assert (count.failed, count.shallow) == (1, 0)
    assert out == as_lines(lines)


@pytest.mark.parametrize(("turns", "calls"), [(1, 2), (2, 1), (7, 1), (0, 4), ("1", 4)])
def test_what_a_user_of_codex_took_back_stays(tmp_path: Path, turns: Any, calls: int) -> None:
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<cwd>/</cwd>"}]}
    context, back = (
        {"timestamp": "t", "type": kind, "payload": payload}
        for kind, payload in (
            ("response_item", asked),  # what Codex itself says is no turn
            ("event_msg", {"type": "thread_rolled_back", "num_turns": turns}),
        )
    )
    repaired = session("codex")[1:]
    lines = [*session("codex", CLEAN), *repaired[:-1], context, repaired[-1], back, *session("codex", CLEAN)[1:]]
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(lines)})
    assert (count.calls, count.shallow) == (calls, int(calls == 4))
    assert (out == as_lines(lines)) == (calls < 4)


def test_a_call_of_codex_that_exited_with_a_code_is_no_fix(tmp_path: Path) -> None:
    items = session("codex")
    for item in items:
        if item["payload"].get("output") == "4.0":
            item["payload"]["output"] = (
                "Chunk ID: 4c51\nWall time: 0.1 seconds\nProcess exited with code 1\n"
                "Original token count: 4\nOutput:\nno space is left"
            )
    out, (count,) = run(tmp_path, {"in.jsonl": as_lines(items)})
    assert (count.failed, count.shallow) == (2, 0)
    assert out == as_lines(items)
