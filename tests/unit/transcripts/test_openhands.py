"""OpenHands' events, those of its SDK and those before it: what was rejected, and what was thought."""

from __future__ import annotations

from typing import Any

import pytest

from retcon.transcripts.purifying.one import purify_transcript

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
