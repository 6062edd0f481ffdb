"""Nothing of what a demonstration asks is lost, wherever its format keeps it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from retcon.chat.chat import Chat
from retcon.chat.families.hermes import render_call
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecordError, TaskWarning
from retcon.core.types import Trajectory
from retcon.train.datasets.demonstrations import read_rendered

TOKENIZER = ByteTokenizer()
CALLS = [
    {"role": "assistant", "content": render_call("python", {"code": "print(1)"})},
    {"role": "tool", "content": "1"}, {"role": "assistant", "content": "A"},
]  # fmt: skip
PLAIN = "<|im_start|>user\nQ<|im_end|>\n"
SYSTEM = "<|im_start|>system\nS<|im_end|>\n"
OPENS = "<|im_start|>assistant\n"


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def read(tmp_path: Path, record: object) -> list[Trajectory]:
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(record) + "\n")
    return [trajectory for _, trajectory in read_rendered(file, Chat(TOKENIZER, style="markdown"))]


def told(tmp_path: Path, record: object) -> str:
    """All that the model is shown before its first turn."""
    (trajectory,) = read(tmp_path, record)
    return "".join(segment.text for segment in trajectory.prompt)


@pytest.mark.parametrize("completion", [[message("assistant", "A")], CALLS], ids=["plain", "calls"])
def test_a_prompt_comes_before_its_completion(tmp_path, completion):
    asked = [message("system", "S"), message("user", "Q")]
    assert told(tmp_path, {"prompt": asked, "completion": completion}) == SYSTEM + PLAIN + OPENS
    assert told(tmp_path, {"prompt": "Q", "completion": completion}) == PLAIN + OPENS
    earlier = [message("user", "Q"), message("assistant", "H"), message("user", "Q")]
    before = PLAIN + "<|im_start|>assistant\nH<|im_end|>\n" + PLAIN + OPENS
    assert told(tmp_path, {"prompt": earlier, "completion": completion}) == before


@pytest.mark.parametrize(
    ("record", "asked"),
    [
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, "Add.\n\n1 2"),
        ({"instruction": "Add.", "input": "", "output": "3"}, "Add."),
        ({"instruction": "", "input": "1 2", "output": "3"}, "1 2"),
        ({"instruction": "Add.", "context": "1 2", "response": "3"}, "Add.\n\n1 2"),
        ({"question": "Who?", "context": "Ann came.", "answer": "Ann"}, "Ann came.\n\nWho?"),
        ({"question": "Ann came. Who?", "context": "Ann came.", "answer": "Ann"}, "Ann came. Who?"),
        ({"question": "Who?", "context": ["no", "text"], "answer": "Ann"}, "Who?"),
        ({"instruction": "Add.", "input": "1 2", "output": "<python>print(1 + 2)</python><result>3</result>3"},
         "Add.\n\n1 2"),
    ],
)  # fmt: skip
def test_what_goes_with_a_question_is_asked_too(tmp_path, record, asked):
    assert told(tmp_path, record) == f"<|im_start|>user\n{asked}<|im_end|>\n{OPENS}"


def test_the_earlier_turns_of_an_alpaca_record_are_rendered(tmp_path):
    record = {"instruction": "Q", "input": "", "output": "A", "history": [["Q", "H"]], "system": "S"}
    assert told(tmp_path, record) == f"{SYSTEM}{PLAIN}<|im_start|>assistant\nH<|im_end|>\n{PLAIN}{OPENS}"
    assert told(tmp_path, {**record, "history": []}) == SYSTEM + PLAIN + OPENS


def test_a_question_beside_messages_that_begin_with_the_models_words_is_asked(tmp_path):
    assert told(tmp_path, {"question": "Q", "messages": CALLS}) == PLAIN + OPENS
    assert told(tmp_path, {"question": "Q", "messages": CALLS[-1:]}) == PLAIN + OPENS
    greeted = [message("assistant", "Hello!"), message("user", "Q"), message("assistant", "A")]
    assert told(tmp_path, {"question": "Q", "messages": greeted}) == OPENS


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"query": "Q", "response": "A"}, "response"),
        ({"query": "Q", "completion": [message("assistant", "A")]}, "completion"),
        ({"query": "Q", "completion": CALLS}, "completion"),
        ({"prompt": "", "completion": "A"}, "completion"),
    ],
)
def test_an_answer_to_nothing_is_refused_by_line(tmp_path, record, name):
    said = rf"one\.jsonl, line 1: no question before '{name}'.*has {', '.join(record)};"
    with pytest.raises(RecordError, match=said):
        read(tmp_path, record)


def test_text_and_a_conversation_may_begin_with_the_models_words(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TaskWarning)
        assert told(tmp_path, {"text": "raw"}) == OPENS
        assert told(tmp_path, {"messages": [message("assistant", "Hello!"), message("user", "Q"), *CALLS]}) == OPENS


def test_a_context_stands_beside_a_completion_that_repeats_the_question(tmp_path):
    record = {"question": "Q", "context": "C", "completion": [message("user", "Q"), message("assistant", "A")]}
    assert "C\n\nQ" in told(tmp_path, record)


def test_turns_in_a_text_that_are_not_all_of_it_stay_text(tmp_path):
    for prompt, kept in ((PLAIN + OPENS + "I will", "I will"), ("Be nice.\n" + PLAIN + OPENS, "Be nice.")):
        assert kept in told(tmp_path, {"prompt": prompt, "completion": "A"})
    assert told(tmp_path, {"prompt": f"{PLAIN}{OPENS}<think>\n", "completion": "A"}) == PLAIN + OPENS


def test_an_answer_beside_a_talk_that_the_model_begins_is_of_that_talk(tmp_path):
    talk = [message("assistant", "Hello!"), message("user", "Q"), message("assistant", "A")]
    assert told(tmp_path, {"messages": talk, "answer": "A"}) == OPENS
