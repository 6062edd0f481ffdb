"""Sessions of Gemini CLI, and the events of `claude -p --output-format stream-json`; lines that stand twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retcon.transcripts.purifier import purify_transcript
from unit.transcripts.test_detect import lines, run

FAILED, FIXED = "print(sm([2, 3]))", "print(sum([2, 3]))"
ERROR = "NameError: name 'sm' is not defined"
Line = dict[str, Any]
THOUGHT = {"subject": "Sum", "description": "A sum will do.", "timestamp": "t"}


def message(id: str, type: str, content: Any, **fields: Any) -> Line:
    return {"id": id, "timestamp": "t", "type": type, "content": content, **fields}


def made(id: str, code: str, output: str, status: str = "success") -> Line:
    response = {"functionResponse": {"id": id, "name": "run", "response": {"output": output}}}
    return {"id": id, "name": "run_python", "args": {"code": code}, "result": [response], "status": status}


ASKED = message("1", "user", [{"text": "2 and 3?"}])
FIRST = message("2", "gemini", "I add.", thoughts=[THOUGHT], toolCalls=[made("a", FAILED, ERROR, "error")])
SECOND = message("3", "gemini", "", thoughts=[], toolCalls=[made("b", FIXED, "5")])
LAST = message("4", "gemini", "It is 5.", thoughts=[])
META = {"sessionId": "s", "projectHash": "h", "startTime": "t", "lastUpdated": "t"}
UPDATE = {"$set": {"lastUpdated": "u"}}


def again(one: Line) -> Line:
    """The user's message that repeats the results of one of the model's."""
    return message(f"{one['id']}u", "user", one["toolCalls"][0]["result"])


def test_a_session_of_gemini_cli_in_one_document() -> None:
    clean, count = purify_transcript({**META, "messages": [ASKED, FIRST, SECOND, LAST]})
    assert (dict(count.formats), count.calls, count.failed, count.shallow) == ({"gemini-cli": 1}, 2, 1, 1)
    assert clean == {**META, "messages": [ASKED, {**SECOND, "content": "I add.", "thoughts": [THOUGHT]}, LAST]}


def test_a_session_of_gemini_cli_in_lines(tmp_path: Path) -> None:
    """Each line of an id takes the place of the one before; what was taken back stays and is nobody's."""
    wrong = [
        message("0", "user", "Wrong."),
        message("0g", "gemini", "No.", toolCalls=[made("z", FAILED, ERROR, "error")]),
    ]
    begun = {**SECOND, "toolCalls": []}
    written = [
        META, *wrong, {"$rewindTo": "0"}, ASKED, UPDATE, FIRST, UPDATE, again(FIRST), begun, SECOND, again(SECOND),
        LAST,
    ]  # fmt: skip
    data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in written)
    out, count = run(tmp_path, data)
    assert (dict(count.formats), count.transcripts, count.calls, count.failed, count.shallow) == (
        {"gemini-cli": 1}, 1, 2, 1, 1,
    )  # fmt: skip
    fixed = {**SECOND, "content": "I add.", "thoughts": [THOUGHT]}
    left = [META, *wrong, {"$rewindTo": "0"}, ASKED, UPDATE, fixed, again(SECOND), LAST]
    assert [json.loads(line) for line in out.splitlines()] == left


def test_a_call_that_the_user_cancelled_is_no_failure() -> None:
    cancelled = {**FIRST, "toolCalls": [made("a", FAILED, "[Operation Cancelled]", "cancelled")]}
    _, count = purify_transcript({**META, "messages": [ASKED, cancelled, SECOND, LAST]})
    assert (count.calls, count.failed) == (2, 0)


def test_a_session_without_calls_is_read(tmp_path: Path) -> None:
    out, count = run(tmp_path, lines([META, ASKED, UPDATE, LAST]))
    assert (out, count.transcripts, count.without_calls) == (lines([META, ASKED, UPDATE, LAST]), 1, 1)


def event(role: str, content: Any, **fields: Any) -> Line:
    return {"type": role, "message": {"role": role, "content": content, **fields}, "session_id": "z"}


def use(id: str, code: str) -> Line:
    return event("assistant", [{"type": "tool_use", "id": id, "name": "python", "input": {"code": code}}], id=f"m{id}")


def result(id: str, text: str, failed: bool = False) -> Line:
    return event("user", [{"type": "tool_result", "tool_use_id": id, "content": text, "is_error": failed}])


@pytest.mark.parametrize("uuids", [True, False])
def test_the_events_of_claude(tmp_path: Path, uuids: bool) -> None:
    events = [
        {"type": "system", "subtype": "init", "session_id": "z", "tools": ["python"]},
        use("a", FAILED), result("a", ERROR, True), use("b", FIXED), result("b", "5"),
        event("assistant", [{"type": "text", "text": "It is 5."}]),
        {"type": "result", "subtype": "success", "is_error": False, "result": "It is 5.", "session_id": "z"},
    ]  # fmt: skip
    events = [{**one, "uuid": f"u{n}"} if uuids else one for n, one in enumerate(events)]
    out, count = run(tmp_path, lines(events))
    assert (dict(count.formats), count.calls, count.failed, count.shallow) == ({"claude-code": 1}, 2, 1, 1)
    left = [json.loads(line) for line in out.splitlines()]
    assert [line for line in left if line in events] == [events[0], *events[3:]]
    assert FAILED not in out.decode()
