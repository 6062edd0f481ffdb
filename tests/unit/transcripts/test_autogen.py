"""AutoGen's teams: who is the model is told by what it does, not by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.transcripts.purifier import purify_transcript

FAILED, WORKS = "print(math.sqrt(3))", "import math\nprint(math.sqrt(3))"


def message(source: str, content: Any, type: str = "TextMessage", usage: Any = None) -> dict[str, Any]:
    return {"source": source, "models_usage": usage, "metadata": {}, "content": content, "type": type}


def called(id: str, code: str, output: str, *, failed: bool) -> list[dict[str, Any]]:
    call = {"id": id, "arguments": json.dumps({"code": code}), "name": "python"}
    result = {"content": output, "name": "python", "call_id": id, "is_error": failed}
    return [
        message("coder", [call], "ToolCallRequestEvent"),
        message("coder", [result], "ToolCallExecutionEvent"),
    ]


def team(*between: dict[str, Any]) -> dict[str, Any]:
    return {
        "messages": [
            message("user", "What is the root of 3?"), message("coder", "I compute it with sqrt."),
            *called("a", FAILED, "NameError: name 'math' is not defined", failed=True), *between,
            *called("b", WORKS, "1.732", failed=False), message("coder", "It is 1.732."),
        ]
    }  # fmt: skip


@pytest.mark.parametrize("name", ["user", "user_proxy", "Anna"])
def test_what_a_human_says_is_a_user_s_whatever_their_name(name: str) -> None:
    record = team(message(name, "Three digits, please."))
    clean, count = purify_transcript(record)
    assert clean is record
    assert (count.calls, count.failed, count.left["user"]) == (2, 1, 1)


def test_the_task_of_a_chat_stays_though_it_holds_a_program_that_failed() -> None:
    task = {"role": "assistant", "name": "expert", "content": f"Find the root of 3.\n```python\n{FAILED}\n```"}
    ran = {
        "role": "user",
        "name": "terminal",
        "content": "exitcode: 1 (execution failed)\nCode output: NameError: math",
    }
    fix = {**task, "content": f"Here it is:\n```python\n{WORKS}\n```"}
    works = {**ran, "content": "exitcode: 0 (execution succeeded)\nCode output: 1.732"}
    record = {"history": [task, ran, fix, works]}
    clean, count = purify_transcript(record)
    assert clean is record
    assert (count.calls, count.failed) == (1, 0)
