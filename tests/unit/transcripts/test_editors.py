"""Calls of editors: what they do stands in all their arguments, not in the verb under `command`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.purify.offline import Offline
from retcon.transcripts.purifying.one import purify_transcript

MODELS = {"path": "/repo/models.py", "old_str": "class A:", "new_str": "class A(Base):"}
README = {"path": "/repo/readme.md", "old_str": "Helo", "new_str": "Hello"}
OTHER = {"path": "/repo/models.py", "old_str": "LIMIT = 10  # of all that is read", "new_str": "LIMIT = 20"}


def messages(*edits: dict[str, str]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"role": "user", "content": "Mend it."}]
    for n, edit in enumerate(edits):
        function = {"name": "str_replace_editor", "arguments": json.dumps({"command": "str_replace", **edit})}
        called = [{"id": str(n), "type": "function", "function": function}]
        steps.append({"role": "assistant", "content": f"Edit {n}.", "tool_calls": called})
        steps.append({"role": "tool", "tool_call_id": str(n), "content": f"out {n}", "is_error": not n})
    return {"messages": steps}


def openhands(*edits: dict[str, str]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"id": 0, "source": "user", "action": "message", "args": {"content": "Mend it."}}]
    for n, edit in enumerate(edits):
        made = {"tool_call_id": str(n), "function_name": "str_replace_editor"}
        args = {"command": "str_replace", "thought": f"Edit {n}.", **edit}
        steps.append({"source": "agent", "action": "edit", "args": args, "tool_call_metadata": made})
        seen = {"source": "agent", "content": f"out {n}", "tool_call_metadata": made}
        steps.append({**seen, "observation": "edit" if n else "error", "extras": {}})
    return {"history": steps}


@pytest.mark.parametrize("shape", [messages, openhands])
@pytest.mark.parametrize(
    ("edits", "fixed"),
    [
        ((MODELS, README), False),
        ((MODELS, {**MODELS, "old_str": "class  A:"}), True),
        ((MODELS, {**MODELS, "path": "/repo/src/models.py", "old_str": "class A():"}), True),
        ((MODELS, {**MODELS, "path": "/repo/tables.py"}), True),
        ((MODELS, {**OTHER, "path": "/repo/tables.py"}), False),
    ],
)
def test_an_edit_is_fixed_by_the_same_edit_and_by_no_other(shape: Any, edits: Any, fixed: bool) -> None:
    count = purify_transcript(shape(*edits), offline=Offline(state="ignore"))[1]
    assert (count.calls, count.failed, count.shallow) == (2, 1, fixed)
    assert count.left["unrelated"] == (not fixed)


@pytest.mark.parametrize("shape", [messages, openhands])
def test_what_an_edit_left_behind_cannot_be_told(shape: Any) -> None:
    count = purify_transcript(shape(MODELS, {**MODELS, "old_str": "class  A:"}))[1]
    assert (count.shallow, count.left["effects"]) == (0, 1)


def test_a_shell_s_command_is_still_its_program() -> None:
    record = messages({"command": "make al", "timeout": "5"}, {"command": "make all", "timeout": "600"})
    _, count = purify_transcript(record, offline=Offline(state="ignore", gamma=0.93))
    assert count.shallow == 1
