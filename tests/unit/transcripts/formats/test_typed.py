"""What a format says of how a call ended decides, whatever was printed; where it says nothing, the rules do."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from foreign import FORMATS, answer, user, works
from retcon.transcripts.detector import Detector
from retcon.transcripts.purifier import purify_transcript

ODD = "NameError: name 'x' is not defined"
"""An output that the rules take for a failure."""
STEPS = (user("?"), works("f()", "4.0"), works("g()", "5.0"), answer("9"))


def first_output(record: dict[str, Any], name: str) -> dict[str, Any]:
    """Where a record says what its first call gave."""
    key = next(key for key in ("messages", "history", "input", "steps", "response", "traces") if key in record)
    listed = record[key]
    if name == "nemo_gym":
        listed = listed["output"]
    if name == "traces":
        listed = [node["message"] for node in listed[0]["nodes"]]
    return next(found for item in listed if (found := _output(item, name)))


def _output(item: dict[str, Any], name: str) -> Any:
    if name == "anthropic":
        return item["content"][0] if item["role"] == "user" and isinstance(item["content"], list) else None
    if name in ("autogen", "autogen_code"):
        answers = {"ToolCallExecutionEvent": lambda: item["content"][0], "CodeExecutionEvent": lambda: item["result"]}
        return answers[item["type"]]() if item["type"] in answers else None
    if name == "openhands_sdk":
        return item if item["kind"] == "ObservationEvent" else None
    named = {"openhands": "observation", "smolagents": "step_number"}
    if name in named:
        return item if named[name] in item else None
    kind = {"langchain_flat": "tool", "responses": "function_call_output", "nemo_gym": "code_interpreter_call"}
    return item if item.get("type" if name in kind else "role") == kind.get(name, "tool") else None


def ran(**fields: Any) -> list[dict[str, Any]]:
    """What a shell of the Responses API gave."""
    return [{"stdout": "", "stderr": "", **fields}]


@pytest.mark.parametrize(
    ("name", "says", "status", "type"),
    [
        ("messages", {"is_error": True, "content": "oops"}, "error", None),
        ("messages", {"is_error": False, "content": ODD}, "ok", None),
        ("messages", {"status": "Failed", "content": "oops"}, "error", None),
        ("messages", {"status": "success", "content": ODD}, "ok", None),
        ("messages", {"status": "queued", "content": ODD}, "error", "NameError"),
        ("messages", {"status": "timeout"}, "timeout", None),
        ("messages", {"status": "limit"}, "limit", None),
        ("messages", {"status": "malformed"}, "malformed", None),
        ("messages", {"status": "infrastructure", "content": ODD}, "infrastructure", None),
        ("messages", {"exit_code": 2, "content": "oops"}, "error", "exit 2"),
        ("messages", {"exit_code": 0, "content": ODD}, "ok", None),
        ("messages", {"returncode": 1, "content": "oops"}, "error", "exit 1"),
        ("messages", {"exit_code": None, "content": ODD}, "error", "NameError"),
        ("messages", {"error": {"type": "timeout"}, "is_error": False}, "timeout", "timeout"),
        ("messages", {"error": None, "content": ODD}, "error", "NameError"),
        ("inspect", {"error": {"type": "parsing"}}, "malformed", "parsing"),
        ("inspect", {"error": {"type": "output_limit"}}, "limit", "output_limit"),
        ("inspect", {"error": {"type": "permission"}}, "error", "permission"),
        ("traces", {"is_error": True, "content": "oops"}, "error", None),
        ("langchain_flat", {"status": "error", "content": "oops"}, "error", None),
        ("langchain_flat", {"status": "success", "content": ODD}, "error", "NameError"),
        ("autogen", {"is_error": True, "content": "oops"}, "error", None),
        ("autogen", {"is_error": False, "content": ODD}, "error", "NameError"),
        ("autogen_code", {"exit_code": 1, "output": "oops"}, "error", "exit 1"),
        ("autogen_code", {"exit_code": 0, "output": ODD}, "ok", None),
        ("autogen_code", {"exit_code": None, "output": ODD}, "error", "NameError"),
        ("openhands", {"content": "oops", "extras": {"metadata": {"exit_code": 2}}}, "error", "exit 2"),
        ("openhands", {"content": ODD, "extras": {"metadata": {"exit_code": 0}}}, "ok", None),
        ("openhands", {"content": ODD, "extras": {"metadata": {"exit_code": -1}}}, "error", "NameError"),
        ("openhands", {"content": "oops", "observation": "error"}, "error", None),
        ("openhands_sdk", {"observation": {"content": "oops", "is_error": True}}, "error", None),
        ("openhands_sdk", {"observation": {"content": ODD, "is_error": False}}, "error", "NameError"),
        ("openhands_sdk", {"observation": {"content": ODD, "exit_code": 0}}, "ok", None),
        ("openhands_sdk", {"observation": {"output": "oops", "metadata": {"exit_code": 3}}}, "error", "exit 3"),
        ("openhands_sdk", {"observation": {"content": "…", "exit_code": -1, "timeout": True}}, "timeout", "Timeout"),
        ("openhands_sdk", {"kind": "AgentErrorEvent", "error": "no such tool"}, "error", None),
        ("anthropic", {"is_error": True, "content": "oops"}, "error", None),
        ("anthropic", {"is_error": False, "content": ODD}, "ok", None),
        ("anthropic", {"content": ODD}, "error", "NameError"),
        ("anthropic", {"content": {"stdout": "", "stderr": "oops", "return_code": 1}}, "error", "exit 1"),
        ("anthropic", {"content": {"stdout": ODD, "stderr": "", "return_code": 0}}, "ok", None),
        ("anthropic", {"content": {"type": "x_tool_result_error", "error_code": "busy"}}, "error", "busy"),
        ("responses", {"status": "failed", "output": "oops"}, "error", None),
        ("responses", {"status": "completed", "output": ODD}, "error", "NameError"),
        ("responses", {"output": ran(outcome={"type": "exit", "exit_code": 1})}, "error", "exit 1"),
        ("responses", {"output": ran(stderr=ODD, outcome={"type": "exit", "exit_code": 0})}, "ok", None),
        ("responses", {"output": ran(outcome={"type": "timeout"})}, "timeout", None),
        ("nemo_gym", {"status": "failed", "outputs": None}, "error", None),
        ("nemo_gym", {"outputs": [{"type": "logs", "logs": ODD}]}, "error", "NameError"),
        ("smolagents", {"error": None, "observations": ODD}, "ok", None),
        ("smolagents", {"error": {"type": "AgentError", "message": "due to: ValueError: no"}}, "error", "ValueError"),
        ("smolagents", {"error": {"type": "AgentParsingError", "message": "no code"}}, "error", "AgentParsingError"),
    ],
)  # fmt: skip
def test_what_a_format_says_of_a_call(name: str, says: dict[str, Any], status: str, type: str | None) -> None:
    record = copy.deepcopy(FORMATS[name](STEPS))
    first_output(record, name).update(says)
    found = Detector().format_of(record)
    assert found is not None
    (read,) = found.read(record, "t").trajectories
    seen = [(o.status, o.error_type) for turn in read.turns for o in turn.observations]
    assert seen == [(status, type), ("ok", None)]
    _, count = purify_transcript(record)
    failed = status not in ("ok", "infrastructure")
    assert (count.calls, count.failed, count.rules.total(), [*count.types]) == (
        2, failed, failed, [type or status] * failed,
    )  # fmt: skip
