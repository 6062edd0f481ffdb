"""OpenHands' events, those of its SDK and those before it: what was rejected, and what was thought."""

from __future__ import annotations

from typing import Any

import pytest

from retcon.transcripts.purifier import purify_transcript

FAILED, WORKS = "print(round(pi * 2, 3))", "from math import pi\nprint(round(pi * 2, 3))"
ERROR = "Traceback (most recent call last):\n  File \"<x>\", line 1, in <module>\nNameError: name 'pi' is not defined"
Event = dict[str, Any]
USER = {"source": "user", "action": "message", "args": {"content": "2 pi?"}}
SDK_USER = {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [{"text": "2 pi?"}]}}
REASON = "I would rather not."


def action(id: str, code: str, **message: Any) -> Event:
    said = {"role": "assistant", "content": "I compute it.", "tool_calls": [{"id": id}], **message}
    made = {"tool_call_id": id, "model_response": {"id": f"r{id}", "choices": [{"index": 0, "message": said}]}}
    args = {"code": code, "thought": "I compute it."}
    return {"source": "agent", "action": "run_ipython", "args": args, "tool_call_metadata": made}


def seen(id: str, output: str, kind: str = "run_ipython") -> Event:
    made = {"tool_call_id": id}
    return {"source": "agent", "observation": kind, "content": output, "extras": {}, "tool_call_metadata": made}


def sdk_action(id: str, code: str, **beside: Any) -> Event:
    return {
        "kind": "ActionEvent", "source": "agent", "thought": [{"type": "text", "text": "I compute it."}],
        "tool_call_id": id, "action": {"kind": "PythonAction", "code": code}, "tool_name": "python",
        "llm_response_id": f"r{id}", **beside,
    }  # fmt: skip


def sdk_seen(id: str, output: str) -> Event:
    return {"kind": "ObservationEvent", "tool_call_id": id, "observation": {"content": [{"text": output}]}}


SDK_REJECTED = {"kind": "UserRejectObservation", "tool_call_id": "b", "rejection_reason": REASON}


@pytest.mark.parametrize(
    "events",
    [
        [SDK_USER, sdk_action("a", FAILED), sdk_seen("a", ERROR), sdk_action("b", WORKS), SDK_REJECTED],
        [USER, action("a", FAILED), seen("a", ERROR), action("b", WORKS), seen("b", REASON, "user_rejected")],
    ],
    ids=["sdk", "before"],
)
def test_an_action_that_the_user_rejected_is_no_fix_and_no_failure(events: list[Event]) -> None:
    clean, count = purify_transcript({"history": events})
    assert clean["history"] == events
    assert (count.calls, count.failed, count.shallow, dict(count.left)) == (2, 1, 0, {"unclear": 1})


THOUGHTS = ("Twice pi is easy.", "The NameError says that pi must be imported.")


@pytest.mark.parametrize("own", ["I compute it.", "I print it."])
def test_after_a_shallow_repair_the_reasoning_is_that_of_the_words(own: str) -> None:
    first, second = (
        {"reasoning_content": said, "reasoning_details": [{"type": "reasoning.text", "text": said}]}
        for said in THOUGHTS
    )
    fix = sdk_action("b", WORKS, **second)
    fix["thought"][0]["text"] = own
    events = [SDK_USER, sdk_action("a", FAILED, **first), sdk_seen("a", ERROR), fix, sdk_seen("b", "6.283")]
    clean, count = purify_transcript({"history": events})
    assert count.shallow == 1
    assert clean["history"][1] == sdk_action("b", WORKS, **first)


@pytest.mark.parametrize("own", ["I compute it.", "I print it."])
@pytest.mark.parametrize("thought", [THOUGHTS[0], None])
def test_the_reply_beside_an_action_of_other_words_or_thoughts_is_emptied(thought: str | None, own: str) -> None:
    first = {"reasoning_content": thought, "thinking_blocks": [thought]} if thought else {}
    second = {"reasoning_content": THOUGHTS[1], "thinking_blocks": [THOUGHTS[1]]}
    fix = action("b", WORKS, **second, content=own)
    fix["args"]["thought"] = own
    events = [USER, action("a", FAILED, **first), seen("a", ERROR), fix, seen("b", "6.283")]
    clean, count = purify_transcript({"history": events})
    assert count.shallow == 1
    wanted = action("b", WORKS)
    wanted["tool_call_metadata"]["model_response"] = None
    assert clean["history"][1] == wanted


def test_a_reply_whose_action_keeps_its_words_stays() -> None:
    fix = action("b", f"# Fixed the NameError\n{WORKS}", content=None, reasoning_content=THOUGHTS[0])
    failure = action("a", FAILED, reasoning_content=THOUGHTS[0])
    clean, count = purify_transcript({"history": [USER, failure, seen("a", ERROR), fix, seen("b", "6.283")]})
    assert count.shallow == 1
    assert clean["history"][1] == action("b", WORKS, content=None, reasoning_content=THOUGHTS[0])
