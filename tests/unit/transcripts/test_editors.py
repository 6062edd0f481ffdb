"""Calls of editors, whose arguments say what they do, not the verb under `command`; and of shells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.purify.offline import Repairer
from retcon.transcripts.purifier import purify_transcript

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
    count = purify_transcript(shape(*edits), offline=Repairer(state="ignore"))[1]
    assert (count.calls, count.failed, count.shallow) == (2, 1, fixed)
    assert count.left["unrelated"] == (not fixed)


@pytest.mark.parametrize("shape", [messages, openhands])
def test_what_an_edit_left_behind_cannot_be_told(shape: Any) -> None:
    count = purify_transcript(shape(MODELS, {**MODELS, "old_str": "class  A:"}))[1]
    assert (count.shallow, count.left["effects"]) == (0, 1)


def test_a_shell_s_command_is_still_its_program() -> None:
    record = messages({"command": "make al", "timeout": "5"}, {"command": "make all", "timeout": "600"})
    _, count = purify_transcript(record, offline=Repairer(state="ignore", gamma=0.93))
    assert count.shallow == 1


MADE = "mkdir build && cp -r src build && cd build && python3 run.py --n 3"
COMMANDS = [["bash", "-lc", MADE], ["bash", "-lc", "cd build && python3 run.py --num 3"]]


def called(name: str, arguments: dict[str, Any], n: int) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": "I run it.", "tool_calls": [{"id": str(n), "function": function}]}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("shell", [{"command": words} for words in COMMANDS]),
        ("exec", [{"cmd": words} for words in COMMANDS]),
        ("shell", [{"argv": words} for words in COMMANDS]),
    ],
)
@pytest.mark.parametrize("shape", ["messages", "responses"])
def test_a_shell_s_command_that_is_a_list_is_one_too(name: str, arguments: Any, shape: str) -> None:
    steps: list[dict[str, Any]] = [{"role": "user", "content": "Run it."}]
    for n, given in enumerate(arguments):
        output = "ok" if n else "unknown argument\nexit code: 2"
        if shape == "messages":
            steps += [called(name, given, n), {"role": "tool", "tool_call_id": str(n), "content": output}]
        else:
            call = {"type": "function_call", "call_id": str(n), "name": name, "arguments": json.dumps(given)}
            steps += [call, {"type": "function_call_output", "call_id": str(n), "output": output}]
    record = {"messages" if shape == "messages" else "input": steps}
    count = purify_transcript(record)[1]
    assert (count.failed, count.shallow, dict(count.left)) == (1, 0, {"effects": 1})
    assert purify_transcript(record, offline=Repairer(state="ignore"))[1].shallow == 1


@pytest.mark.parametrize("key", ["language", "lang", "runtime"])
@pytest.mark.parametrize(("language", "repairs"), [("bash", 0), ("Shell", 0), ("pwsh", 0), ("python", 1)])
def test_a_program_whose_language_is_a_shell_is_a_shell_s_whatever_the_tool(
    key: str, language: str, repairs: int
) -> None:
    steps: list[dict[str, Any]] = [{"role": "user", "content": "How many lines?"}]
    for n, first in enumerate(("rm -rf old && mv work old", "mkdir -p data")):
        program = {key: language, "code": f"{first}\ncp in.csv data/in.csv && wc -l data/in.csv"}
        function = {"name": "execute", "arguments": json.dumps(program)}
        called = [{"id": str(n), "type": "function", "function": function}]
        steps.append({"role": "assistant", "content": "I copy.", "tool_calls": called})
        steps.append({"role": "tool", "tool_call_id": str(n), "content": f"out {n}", "exit_code": 1 - n})
    record = {"messages": [*steps, {"role": "assistant", "content": "12"}]}
    assert purify_transcript(record)[1].shallow == repairs
    assert purify_transcript(record, offline=Repairer(state="ignore"))[1].shallow == 1
