"""Calls of kinds that a format names anew from time to time: they are calls, whatever they are called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.core.errors import RecordError
from retcon.transcripts.detector import Detector, tool_use
from retcon.transcripts.purifier import purify_transcript

FAILED, WORKS = "print(round(pi * 2, 3))", "from math import pi\nprint(round(pi * 2, 3))"
ERROR = "Traceback (most recent call last):\n  File \"<x>\", line 1, in <module>\nNameError: name 'pi' is not defined"
Items = list[dict[str, Any]]


def responses(*between: dict[str, Any]) -> Items:
    def ran(id: str, code: str, output: str) -> Items:
        called = {"type": "function_call", "call_id": id, "name": "python", "arguments": json.dumps({"code": code})}
        return [called, {"type": "function_call_output", "call_id": id, "output": output}]

    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 6.283."}]}
    return [{"role": "user", "content": "2 pi?"}, *ran("a", FAILED, ERROR), *between, *ran("b", WORKS, "6.283"), answer]


PATCH = {
    "type": "apply_patch_call", "id": "p", "call_id": "p", "status": "completed",
    "operation": {"type": "create_file", "path": "notes.md", "diff": "+twice"},
}  # fmt: skip
PATCHED = {"type": "apply_patch_call_output", "call_id": "p", "status": "completed", "output": "Created notes.md"}
SEARCH = {
    "type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "digits of pi"},
}  # fmt: skip
FOUND = {"type": "file_search_call", "id": "f", "status": "completed", "queries": ["pi"], "results": None}


@pytest.mark.parametrize("between", [(PATCH, PATCHED), (SEARCH,), (FOUND,), (PATCH,)])
def test_what_was_done_between_a_failure_and_its_fix_is_not_thrown_away(between: Any) -> None:
    items = responses(*between)
    clean, count = purify_transcript({"input": items})
    assert (clean["input"], count.failed, count.shallow) == (items, 1, 0)


def test_a_patch_that_failed_is_fixed_by_the_next() -> None:
    again = {**PATCH, "call_id": "q", "operation": {**PATCH["operation"], "diff": "+twice pi"}}  # type: ignore[dict-item]
    failed = {**PATCHED, "status": "failed", "output": "No such folder"}
    end = {"role": "assistant", "content": "Done."}
    items = [{"role": "user", "content": "Note it."}, PATCH, failed, again, {**PATCHED, "call_id": "q"}, end]
    count = purify_transcript({"input": items})[1]
    assert (count.calls, count.failed) == (2, 1)


@pytest.mark.parametrize("status", ["completed", "failed", "in_progress"])
def test_a_tool_of_the_server_alone_is_a_call_and_its_status_its_result(status: str) -> None:
    end = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "3.14159"}]}
    record = {"output": [{**SEARCH, "status": status}, end]}
    assert (Detector("auto").format_of(record) or pytest.fail("no format")).name == "responses"
    count = purify_transcript(record)[1]
    ended = status != "in_progress"
    assert (count.calls, count.failed, count.unread) == (ended, status == "failed", not ended)


@pytest.mark.parametrize(("outputs", "shallow"), [(None, 0), ([], 1), ([{"type": "logs", "logs": "6.283"}], 1)])
def test_a_program_whose_output_is_not_kept_is_no_fix(outputs: Any, shallow: int) -> None:
    def ran(code: str, outputs: Any) -> dict[str, Any]:
        return {"type": "code_interpreter_call", "id": code, "code": code, "status": "completed", "outputs": outputs}

    failure = ran(FAILED, [{"type": "logs", "logs": ERROR}])
    end = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 6.283."}]}
    count = purify_transcript({"output": [failure, ran(WORKS, outputs), end]})[1]
    assert (count.failed, count.shallow, count.left["unclear"]) == (1, shallow, 1 - shallow)


@pytest.mark.parametrize("kind", ["tool_call", "server_tool_call", "invalid_tool_call"])
def test_a_call_of_langchain_s_is_no_item_of_responses(kind: str) -> None:
    with pytest.raises(RecordError):
        Detector("responses").format_of({"calls": [{"type": kind, "name": "python", "args": {}, "id": "a"}]})


def messages() -> Items:
    items: Items = [{"role": "user", "content": "2 pi?"}]
    for id, code, output in (("a", FAILED, ERROR), ("b", WORKS, "6.283")):
        call = {"id": id, "type": "function", "function": {"name": "python", "arguments": json.dumps({"code": code})}}
        items += [{"role": "assistant", "content": "", "tool_calls": [call]}]
        items += [{"role": "tool", "tool_call_id": id, "content": output}]
    return items


def of_mcp(id: str, code: str, output: str, failed: bool) -> Items:
    return [
        {"type": "text", "text": "I compute it."},
        {"type": "mcp_tool_use", "id": id, "name": "run", "server_name": "py", "input": {"code": code}},
        {
            "type": "mcp_tool_result",
            "tool_use_id": id,
            "is_error": failed,
            "content": [{"type": "text", "text": output}],
        },
    ]


def anthropic(*between: dict[str, Any]) -> Items:
    def ran(id: str, code: str, output: str, *before: dict[str, Any]) -> Items:
        used = {"type": "tool_use", "id": id, "name": "python", "input": {"code": code}}
        result = {"type": "tool_result", "tool_use_id": id, "content": output, "is_error": output == ERROR}
        said = [*before, {"type": "text", "text": "I compute it."}, used]
        return [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]

    end = {"role": "assistant", "content": "It is 6.283."}
    asked = {"role": "user", "content": "2 pi?"}
    return [asked, *ran("a", FAILED, ERROR), *ran("b", WORKS, "6.283", *between), end]


def test_calls_through_mcp_are_repaired() -> None:
    said = [*of_mcp("m", FAILED, ERROR, True), *of_mcp("n", WORKS, "6.283", False)]
    record = {"messages": [{"role": "user", "content": "2 pi?"}, {"role": "assistant", "content": said}]}
    clean, count = purify_transcript(record)
    assert (count.calls, count.failed, count.shallow) == (2, 1, 1)
    assert [block.get("id") for block in clean["messages"][1]["content"]] == [None, "n", None]


@pytest.mark.parametrize("role", ["tool", "user"])
@pytest.mark.parametrize("listed", [True, False])
def test_calls_in_blocks_that_blocks_answer_are_anthropic_s_whoever_answers(role: str, listed: bool) -> None:
    items = anthropic()
    for said, answer in (items[1:3], items[3:5]):
        answer["role"] = role
        if listed:
            said["tool_calls"] = [{"id": said["content"][1]["id"], "type": "function", "function": {"name": "python"}}]
    clean, count = purify_transcript({"messages": items})
    assert ([*count.formats], count.calls, count.failed, count.shallow) == (["anthropic"], 2, 1, 1)
    said, answer = clean["messages"][1:3]
    assert [said["content"][1]["id"], answer["role"], answer["content"][0]["content"]] == ["b", role, "6.283"]
    assert [call["id"] for call in said.get("tool_calls", [])] == ["b"] * listed


@pytest.mark.parametrize("type", [{"tool_type": "web_search"}, {}])
def test_a_provider_s_own_tool_does_not_make_inspect_s_messages_anthropic_s(type: dict[str, str]) -> None:
    used = {"type": "tool_use", "id": "w", "name": "web_search", "arguments": "pi", "result": "3.14", **type}
    items: Items = [{"role": "user", "content": "2 pi?"}]
    for id, code, output in (("a", FAILED, ERROR), ("b", WORKS, "6.283")):
        call = {"id": id, "function": "python", "arguments": {"code": code}, "type": "function"}
        said = [used, {"type": "text", "text": "I compute it."}] if id == "a" else "I compute it."
        items += [{"role": "assistant", "content": said, "tool_calls": [call]}]
        items += [{"role": "tool", "tool_call_id": id, "function": "python", "content": output}]
    _, count = purify_transcript({"messages": items})
    assert ([*count.formats], count.calls, count.failed, count.shallow) == (["messages"], 2, 1, 1)


def test_a_provider_s_own_tool_alone_is_a_sign_of_tool_use() -> None:
    used = {"type": "tool_use", "tool_type": "mcp_call", "id": "w", "name": "run", "arguments": "{}", "result": "3.14"}
    record = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": [used]}]}
    assert Detector("auto").format_of(record) is None
    assert purify_transcript(record)[1].unread == 1


@pytest.mark.parametrize("kind", ["new_tool_use", "mcp_tool_result", "mcp_call", "web_search_call", "tool_call"])
def test_a_block_that_is_a_call_of_an_unknown_kind_is_a_sign_of_tool_use(kind: str) -> None:
    assert tool_use({"role": "assistant", "content": [{"type": kind}]})
    assert tool_use({"role": "assistant", "content": [{"type": "phone_call"}, {"type": "text", "text": kind}]}) is None


@pytest.mark.parametrize("nulls", [{}, {"arguments": None, "description": None}])
@pytest.mark.parametrize("way", ["custom", "parameters"])
@pytest.mark.parametrize(("fix", "shallow"), [(WORKS, 1), ("import os\nprint(os.listdir('/data'))", 0)])
def test_a_call_without_arguments_by_that_name_is_known_by_what_it_has(
    way: str, fix: str, shallow: int, nulls: dict[str, None]
) -> None:
    def call(id: str, code: str) -> dict[str, Any]:
        if way == "custom":
            return {"id": id, "type": "custom", "custom": {"name": "run", **nulls, "input": code}}
        return {"id": id, "name": "run", **nulls, "parameters": {"code": code}}

    def ran(id: str, code: str, output: str) -> Items:
        said = {"role": "assistant", "content": "", "tool_calls": [call(id, code)]}
        return [said, {"role": "tool", "tool_call_id": id, "content": output}]

    end = {"role": "assistant", "content": "It is 6.283."}
    items = [{"role": "user", "content": "2 pi?"}, *ran("a", FAILED, ERROR), *ran("b", fix, "6.283"), end]
    clean, count = purify_transcript({"messages": items})
    assert (count.calls, count.failed, count.shallow) == (2, 1, shallow)
    assert (clean["messages"] == items) is not bool(shallow)


@pytest.mark.parametrize("nulls", [{}, {"arguments": None}])
@pytest.mark.parametrize(("fix", "shallow"), [(WORKS, 1), ("import os\nprint(os.listdir('/data'))", 0)])
def test_a_custom_tools_call_of_the_responses_api_is_known_by_its_input(
    fix: str, shallow: int, nulls: dict[str, None]
) -> None:
    def ran(id: str, code: str, output: str) -> Items:
        call = {"type": "custom_tool_call", "call_id": id, "name": "run", **nulls, "input": code}
        return [call, {"type": "custom_tool_call_output", "call_id": id, "output": output}]

    asked, end = {"role": "user", "content": "2 pi?"}, {"role": "assistant", "content": "It is 6.283."}
    items = [asked, *ran("a", FAILED, ERROR), *ran("b", fix, "6.283"), end]
    clean, count = purify_transcript({"input": items})
    assert (count.calls, count.failed, count.shallow) == (2, 1, shallow)
    assert clean["input"] == ([asked, *ran("b", fix, "6.283"), end] if shallow else items)
