"""smolagents' steps whose outputs are structured: JSON with a thought and its program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from retcon.transcripts.purifier import purify_transcript

FAILED, WORKS = "print(round(pi * 2, 3))", "from math import pi\nprint(round(pi * 2, 3))"
ERROR = "Code execution failed at line 'print(round(pi * 2, 3))' due to: InterpreterError: The variable `pi` is new."


def step(number: int, thought: str | None, code: str, error: str | None = None, key: str = "thought") -> dict[str, Any]:
    said = json.dumps({"code": code} if thought is None else {key: thought, "code": code})
    return {
        "step_number": number, "code_action": code, "model_output": said,
        "tool_calls": [{"id": f"call_{number}", "function": {"name": "python_interpreter", "arguments": code}}],
        "model_output_message": {"role": "assistant", "content": said}, "observations": None if error else "6.283",
        "error": {"type": "AgentExecutionError", "message": error} if error else None,
    }  # fmt: skip


@pytest.mark.parametrize("key", ["thought", "thoughts"])
@pytest.mark.parametrize("own", ["I multiply it by two.", None])
def test_a_repair_keeps_the_failure_s_thought_and_the_fix_s_program(own: str | None, key: str) -> None:
    failure = step(1, "I multiply pi by two.", FAILED, ERROR, key)
    fix = step(2, own, WORKS, key=key)
    last = step(3, "The previous step failed with an error. The answer is there.", "final_answer(6.283)", key=key)
    clean, count = purify_transcript({"steps": [{"task": "Twice pi?"}, failure, fix, last]})
    assert (count.failed, count.shallow) == (1, 1)
    first, second = clean["steps"][1:]
    wanted = key if own else "thought"
    said = json.dumps({wanted: "I multiply pi by two.", "code": WORKS})
    assert first == {**fix, "model_output": said, "model_output_message": {"role": "assistant", "content": said}}
    assert json.loads(second["model_output"]) == {key: "The answer is there.", "code": "final_answer(6.283)"}
    assert second["model_output_message"]["content"] == second["model_output"]


def test_a_comment_that_is_cut_goes_from_the_program_in_the_output_too() -> None:
    failure, fix = step(1, "Twice.", FAILED, ERROR), step(2, "Twice pi.", f"# Fixed the NameError\n{WORKS}")
    clean, count = purify_transcript({"steps": [{"task": "Twice pi?"}, failure, fix]})
    assert count.shallow == 1
    assert json.loads(clean["steps"][1]["model_output"]) == {"thought": "Twice.", "code": WORKS}
