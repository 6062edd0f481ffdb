"""AutoGen's teams: who is the model is told by what it does, not by its name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from foreign.agents import autogen_chat, autogen_code
from foreign.steps import Step, answer, user, works
from retcon.purify.offline import Offline
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
            message("user", "What is the root of 3?"),
            message("coder", "I compute it with sqrt."),
            *called("a", FAILED, "NameError: name 'math' is not defined", failed=True),
            *between,
            *called("b", WORKS, "1.732", failed=False),
            message("coder", "It is 1.732."),
        ]
    }


@pytest.mark.parametrize("name", ["user", "user_proxy", "Anna"])
def test_what_a_human_says_is_a_user_s_whatever_their_name(name: str) -> None:
    record = team(message(name, "Three digits, please."))
    clean, count = purify_transcript(record)
    assert clean is record
    assert (count.calls, count.failed, count.left["user"]) == (2, 1, 1)


def test_an_agent_that_has_used_a_model_is_one_though_it_calls_nothing() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3}
    _, count = purify_transcript(team(message("planner", "Use the module.", usage=usage)))
    assert (count.failed, count.left["user"]) == (1, 0)
    plain, count = purify_transcript(team())
    assert count.shallow == 1
    assert len(plain["messages"]) == 5  # type: ignore[call-overload, index, arg-type]


COPIES = "rm -rf old && mv work old\ncp in.csv data/in.csv && wc -l data/in.csv"
MAKES = "mkdir -p data\ncp in.csv data/in.csv && wc -l data/in.csv"
SHELL = (user("how many lines?"), Step("call", "I copy.", COPIES, "Traceback"), works(MAKES, "12"))


@pytest.mark.parametrize("write", [autogen_code, autogen_chat])
@pytest.mark.parametrize(("language", "repairs"), [("sh", 0), ("PowerShell", 0), ("python", 1), ("", 1)])
def test_a_program_of_a_shell_is_left_alone(
    write: Callable[[Sequence[Step]], dict[str, Any]], language: str, repairs: int
) -> None:
    text = json.dumps(write((*SHELL, answer("12"))))
    for before, after in (("```python", f"```{language}"), ('"language": "python"', f'"language": "{language}"')):
        text = text.replace(before, after)
    assert purify_transcript(json.loads(text))[1].shallow == repairs
    assert purify_transcript(json.loads(text), offline=Offline(state="ignore"))[1].shallow == 1


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
