"""In a demonstration of any format everybody speaks in their own role, in order, and only the model is learnt from."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import foreign
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.chat.types import TURN_START
from retcon.core.errors import RecordError
from retcon.train.datasets.demonstrations import read_samples
from retcon.train.datasets.preferences import read_preferences

TOKENIZER = ByteTokenizer()
CHAT = Chat(TOKENIZER, style="markdown")
CODE = "print(1)"
Record = dict[str, Any]
pytestmark = pytest.mark.filterwarnings("ignore:.*none calls a tool")


def read(tmp_path: Path, record: object) -> list[tuple[str, str, bool]]:
    """Role, text and loss mask of each message of the sample; a mask is all of a message that it is on, or nothing."""
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(record) + "\n")
    (sample,) = read_samples(file, CHAT, vocabulary=TOKENIZER.size)
    pairs = zip(sample.ids, sample.mask, strict=True)
    text = "".join("\0" * learnt + TOKENIZER.decode([id]) for id, learnt in pairs)
    found = []
    for part in text.split(TURN_START)[1:]:
        role, _, said = part.partition("\n")
        ended = said.removesuffix("\n").replace("\0", "").removesuffix("<|im_end|>")
        assert said.count("\0") in (0, len(ended) + 1)
        found.append((role, ended, "\0" in said))
    return found


SYSTEM, ASKED = {"role": "system", "content": "S"}, {"role": "user", "content": "Q"}
DEVELOPER = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "S"}]}
LANGCHAIN = {"type": "system", "content": "S", "additional_kwargs": {}}
EVENT = {"id": "s", "source": "agent", "kind": "SystemPromptEvent", "system_prompt": {"type": "text", "text": "S"}}
ACTION = {"id": 0, "source": "agent", "action": "system", "args": {"content": "S"}}
AUTOGEN = {"type": "SystemMessage", "source": "user", "content": "S"}
CONTENT = {"role": "system", "parts": [{"text": "S"}]}
LISTED: dict[str, tuple[str, Record]] = {
    **dict.fromkeys(("messages", "inspect", "hermes", "qwen_coder", "markdown", "retool", "arpo", "anthropic"),
                    ("messages", SYSTEM)),
    **dict.fromkeys(("sharegpt", "sharegpt_functions"), ("conversations", {"from": "system", "value": "S"})),
    **dict.fromkeys(("autogen", "autogen_code"), ("messages", AUTOGEN)),
    "mint": ("state.history", SYSTEM), "mathcoder": ("debug_result", SYSTEM), "autogen_chat": ("chat_history", SYSTEM),
    "responses": ("input", DEVELOPER), "smolagents": ("steps", {"system_prompt": "S"}),
    "openhands": ("history", ACTION), "openhands_sdk": ("history", EVENT),
    "langchain": ("messages", {"type": "system", "data": LANGCHAIN}), "langchain_flat": ("messages", LANGCHAIN),
    "langchain_dumpd": ("messages", {"lc": 1, "type": "constructor", "kwargs": LANGCHAIN}),
    "traces": ("traces.0.nodes", {"message": SYSTEM, "sampled": False}),
    "gemini": ("contents", CONTENT), "adk": ("events", {"author": "solver", "content": CONTENT}),
    "claude_code": ("lines", {"type": "user", "uuid": "s", "message": SYSTEM}),
    "codex": ("lines", {"type": "response_item", "payload": DEVELOPER}),
    "bedrock": ("messages", {"role": "system", "content": [{"text": "S"}]}),
    "pydantic_ai": ("messages", {"kind": "request", "parts": [{"part_kind": "system-prompt", "content": "S"}]}),
    "atif": ("steps", {"step_id": 0, "source": "system", "message": "S"}),
}  # fmt: skip
"""The list that everything is in, and the item by which the system speaks in it."""
APART: dict[str, tuple[str, Record]] = {
    "nemo_gym": ("responses_create_params.input", DEVELOPER),
    "swe_agent": ("history", SYSTEM), "slime": ("prompt", SYSTEM),
}  # fmt: skip
"""The list of what comes before the model's first turn."""
TEXTS: dict[str, Record] = {
    **{name: {"input": "system\nS\nuser\nQ\nassistant\n"} for name in ("verl", "verl_coder")},
    **{name: {"system": "S"} for name in ("text", "retool_text")},
}
"""Fields of formats that are text."""
NAMES = [name for name in foreign.FORMATS if name != "ours"]  # whose ids are those of a prompt with its roles


def written(name: str, *steps: foreign.Step, system: int) -> Record:
    """The steps in a format, with a message of the system in the list of items at a place."""
    record = copy.deepcopy(foreign.FORMATS[name](steps))
    record.pop("system", None)
    if name in TEXTS:
        return record | TEXTS[name]
    path, item = (LISTED | APART)[name]
    listed: Any = record
    for key in path.split("."):
        listed = listed[int(key) if key.isdigit() else key]
    if name == "swe_agent":
        listed[0] = ASKED  # its writer leaves it out
    listed.insert(system, item)
    if name == "traces":
        for n, node in enumerate(listed):
            node["parent"] = n - 1 if n else None
    return record


@pytest.mark.parametrize("name", NAMES)
def test_a_system_prompt_comes_first_and_nobody_but_the_model_is_learnt_from(tmp_path, name):
    steps = (foreign.user("Q"), foreign.works(CODE), foreign.answer("A"))
    *told, called, seen, answered = read(tmp_path, written(name, *steps, system=0))
    task = [("user", "solve it", False)] * (name in ("nemo_gym", "smolagents"))
    assert told == [("system", "S", False), *task, ("user", "Q", False)]
    assert (called[0], CODE in called[1], called[2]) == ("assistant", True, True)
    assert (seen[0], "1" in seen[1], seen[2]) == ("tool", True, False)
    assert answered == ("assistant", "A", True)


@pytest.mark.parametrize("name", LISTED)
def test_a_system_may_speak_in_between(tmp_path, name):
    steps = (foreign.user("Q"), foreign.works(CODE), foreign.answer("A"), foreign.user("why?"), foreign.answer("so"))
    *_, answered, system, user, again = read(tmp_path, written(name, *steps, system=-2))
    assert (answered, again) == (("assistant", "A", True), ("assistant", "so", True))
    assert (system, user) == (("system", "S", False), ("user", "why?", False))


def test_every_format_is_tried():
    assert {*LISTED, *APART, *TEXTS} == set(NAMES)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("anthropic", {"system": [{"type": "text", "text": "S"}]}),
        ("bedrock", {"system": [{"text": "S"}]}),
        ("gemini", {"systemInstruction": {"parts": [{"text": "S"}]}}),
        ("gemini", {"config": {"system_instruction": "S"}}),
        ("pydantic_ai", {"messages": [{"instructions": "S"}]}),
        ("responses", {"instructions": "S"}),
        ("nemo_gym", {"responses_create_params": {"instructions": "S", "input": "Q"}}),
        ("smolagents", {"steps": [{"model_input_messages": [SYSTEM, ASKED]}]}),
        ("mathcoder", {"messages": [SYSTEM, ASKED]}),
        ("swe_agent", {"history": [], "trajectory": [{"query": [SYSTEM, ASKED]}]}),
        ("slime", {"prompt": "".join(segment.text for segment in CHAT.prompt("Q", "S"))}),
    ],
)  # fmt: skip
def test_a_system_prompt_that_stands_apart_comes_first(tmp_path, name, fields):
    asked = () if name == "nemo_gym" else (foreign.user("Q"),)
    record = copy.deepcopy(foreign.FORMATS[name]((*asked, foreign.works(CODE), foreign.answer("A"))))
    for key, value in fields.items():
        if key in ("steps", "trajectory", "messages") and isinstance(value, list) and name != "mathcoder":
            # what the first step was given
            step = next(one for one in record[key] if "task" not in one)
            step |= value[0]
        else:
            record[key] = value
    told = [one for one in read(tmp_path, record) if one[0] in ("system", "user") and one[1] != "solve it"]
    assert told == [("system", "S", False), ("user", "Q", False)]


def test_instructions_come_before_what_a_developer_says(tmp_path):
    steps = (foreign.user("Q"), foreign.works(CODE), foreign.answer("A"))
    record = written("responses", *steps, system=0) | {"instructions": "I"}
    assert [text for _, text, _ in read(tmp_path, record)[:3]] == ["I", "S", "Q"]


def test_what_an_assistant_wrote_elsewhere_is_rendered_in_its_role(tmp_path):
    """Messages of a trace that were not sampled, demonstrations of SWE-agent."""
    shown = {"role": "assistant", "content": "H"}
    trace = foreign.FORMATS["traces"]((foreign.user("Q"), foreign.answer("A")))
    nodes = trace["traces"][0]["nodes"]
    nodes[:0] = [{"message": ASKED}, {"message": shown, "sampled": False}]
    for n, node in enumerate(nodes):
        node["parent"] = n - 1 if n else None
    steps = foreign.FORMATS["swe_agent"]((foreign.works(CODE),))
    steps["history"][:1] = [ASKED, shown | {"is_demo": True}, ASKED]
    for record in (trace, steps):
        assert read(tmp_path, record)[:3] == [("user", "Q", False), ("assistant", "H", False), ("user", "Q", False)]


@pytest.mark.parametrize("asked", ["assistant", "user"], ids=["of who runs the tools", "of the model"])
def test_the_roles_of_autogen_02_are_those_of_whose_history_it_is(tmp_path, asked):
    answers = "user" if asked == "assistant" else "assistant"
    seen = SEEN | {"name": "proxy", "tool_responses": [SEEN]}
    chat = [{"role": asked, "name": "proxy", "content": "Q"}, said("", **CALL), seen,
            {"role": answers, "name": "coder", "content": "A"}]  # fmt: skip
    found = read(tmp_path, {"chat_history": chat})
    assert [role for role, _, _ in found] == ["user", "assistant", "tool", "assistant"]
    assert [learnt for _, _, learnt in found] == [False, True, False, True]


def test_an_event_that_is_nobodys_word_is_no_message(tmp_path):
    record = foreign.FORMATS["openhands"]((foreign.user("Q"), foreign.works(CODE), foreign.answer("A")))
    record["history"].insert(0, {"id": 9, "observation": "agent_state_changed", "content": "", "extras": {}})
    assert read(tmp_path, record)[0] == ("user", "Q", False)
    assert len(read(tmp_path, record)) == 4


def said(content: str, **more: object) -> Record:
    return {"role": "assistant", "content": content, **more}


CALL = {"tool_calls": [{"id": "c", "function": {"name": "python", "arguments": json.dumps({"code": CODE})}}]}
SEEN = {"role": "tool", "tool_call_id": "c", "content": "1"}


def test_nothing_comes_after_the_last_words_that_are_learnt(tmp_path):
    messages = [ASKED, said("one", **CALL), SEEN, said("two", weight=0), ASKED, said("three", weight=0)]
    assert [role for role, _, _ in read(tmp_path, {"messages": messages})] == ["user", "assistant"]
    with pytest.raises(RecordError, match="no trajectory to learn from"):
        read(tmp_path, {"messages": [ASKED, said("one", weight=0)]})


def test_calls_that_are_answered_together_are_learnt_together(tmp_path):
    """They are one turn: what one of them forbids is not learnt."""
    messages = [ASKED, said("one", **CALL), said("two", weight=0, **CALL), SEEN, SEEN, said("three")]
    assert [learnt for _, _, learnt in read(tmp_path, {"messages": messages})][-1:] == [True]
    assert sum(learnt for _, _, learnt in read(tmp_path, {"messages": messages})) == 1


def test_a_pair_counts_whatever_the_weight_of_its_messages(tmp_path):
    pair = {"prompt": [ASKED], "chosen": [said("one", **CALL)], "rejected": [said("no", **CALL)]}
    file = tmp_path / "pairs.jsonl"
    weighed = pair | {"rejected": [pair["rejected"][0] | {"weight": 0}]}
    file.write_text("".join(json.dumps(one) + "\n" for one in (pair, weighed)))
    plain, other = read_preferences(file, CHAT, vocabulary=TOKENIZER.size)
    assert plain == other
