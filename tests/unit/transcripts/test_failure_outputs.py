"""The table of outputs: each failure is recognised by the rule that it is for, each look-alike is none."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from retcon.core.types import ToolCall
from retcon.transcripts.purifier import purify_transcript
from retcon.transcripts.verdicts import RULES, UNCLEAR, judge, looks_clean


def ran(code: str, tool: str = "python") -> list[ToolCall]:
    """The call of a tool that runs this program."""
    return [ToolCall("a", tool, {"code": code}, 0)]


TABLES = Path(__file__).parents[2] / "outputs"


def table(name: str) -> list[Any]:
    outputs = tomllib.loads((TABLES / name).read_text("utf-8"))["output"]
    return [pytest.param(one, id=f"{n}: {one['by']}") for n, one in enumerate(outputs)]


FAILURES, SUCCESSES = table("failures.toml"), table("successes.toml")


@pytest.mark.parametrize("output", FAILURES)
def test_a_failure_is_recognised_by_its_rule(output: dict[str, str]) -> None:
    verdict = judge(output["text"], ran(output.get("code", "some(code)"), output.get("tool", "python")))
    assert verdict is not None
    assert (verdict.rule, verdict.status) == (output["rule"], output.get("status", "error"))
    if "type" in output:
        assert verdict.error_type == output["type"]
    assert not looks_clean(output["text"])


@pytest.mark.parametrize("output", SUCCESSES)
def test_what_looks_like_a_failure_is_none(output: dict[str, Any]) -> None:
    verdict = judge(output["text"], ran(output.get("code", "some(code)")))
    assert (verdict and verdict.rule) == (UNCLEAR if output.get("own") else None)
    assert looks_clean(output["text"]) or output.get("own")


def test_python_says_nothing_of_a_record_with_odd_escapes() -> None:
    verdict = judge(r"{'stdout': '', 'stderr': 'C:\data: not found', 'exit_code': 1}", ran("some(code)"))
    assert verdict is not None
    assert verdict.status == "error"


PRINTED = "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nNameError: name 'q'"


@pytest.mark.parametrize("content", [PRINTED, {"stderr": PRINTED, "exit_code": 1}], ids=["text", "record"])
@pytest.mark.parametrize(
    ("beside", "fails"),
    [
        ({"name": "run_file"}, True),
        ({"name": "log.txt"}, False),
        ({"name": "log.txt", "tool_call_id": "a"}, True),
    ],
)
def test_a_name_with_a_content_wraps_an_output_only_if_it_is_the_tool_s(beside: Any, fails: bool, content: Any) -> None:
    text = json.dumps({**beside, "content": content})
    call = {"id": "a", "type": "function", "function": {"name": "run_file", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": text}]
    assert purify_transcript({"messages": messages})[1].failed == fails
    assert (judge(text, [ToolCall("a", "run_file", {}, 0)]) is not None) == fails
    assert not looks_clean(text)


def test_the_table_has_wordings_for_every_rule_and_enough_of_them() -> None:
    rules = {param.values[0]["rule"] for param in FAILURES}
    assert rules == set(RULES) - {"status", "malformed", "named"}  # of fields, of arguments, of the user
    assert len(FAILURES) >= 60
    assert len(SUCCESSES) >= 40
