"""What a demonstration says is learnt, or refused, or counted: never taken for silence, and never left out unsaid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foreign
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecordError, TaskWarning
from retcon.train.datasets.demonstrations import read_rendered, read_samples
from retcon.train.datasets.preferences import read_preferences
from retcon.transcripts.purifier import purify_transcript

TOKENIZER = ByteTokenizer()
CHAT = Chat(TOKENIZER, style="markdown")
CALL = {"tool_calls": [{"id": "c", "function": {"name": "python", "arguments": json.dumps({"code": "print(1)"})}}]}
ASKED, SAID = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
SEEN = {"role": "tool", "tool_call_id": "c", "content": "1"}


def written(folder: Path, *records: object) -> Path:
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def learnt(folder: Path, record: object) -> list[str]:
    """What the model is to say, turn by turn."""
    ((_, trajectory),) = read_rendered(written(folder, record), CHAT)
    return ["".join(s.text for s in turn.generated).removesuffix("<|im_end|>") for turn in trajectory.turns]


ITEMS = [
    ASKED,
    {"type": "reasoning", "id": "rs", "summary": []},
    {"type": "item_reference", "id": "m0"},
    {"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": []},
    {"type": "function_call", "id": "fc", "call_id": "c", **CALL["tool_calls"][0]["function"]},
    {"type": "function_call_output", "call_id": "c", "output": "1"},
    {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
]
"""Of the Responses API, as the Agents SDK's `to_input_list()` gives them."""
TYPES = ("text", "message", "assistant", "step")
"""Of no item that the Responses API has between messages."""
PARTS = [{"type": "text", "text": "Q"}]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([{"role": "user", "parts": PARTS}, SAID], r"message 1 \(user\).*has role, parts$"),
        ([ASKED, {"role": "assistant", "id": "x", "parts": PARTS}], r"message 2 \(assistant\).*has role, id, parts"),
        ([{"role": "user", "text": "Q"}, SAID], r"message 1 \(user\).*has role, text \(did you mean 'content'\?\)"),
        ([ASKED, {"role": "assistant", "contnet": "A"}], r"message 2.*contnet \(did you mean 'content'\?\)"),
        ([{"from": "human", "vlaue": "Q"}, {"from": "gpt", "value": "A"}], r"message 1 \(human\).*'value'"),
        ([ASKED, {"role": "assistant", "content": None}], r"message 2 \(assistant\).*: its content is null$"),
        ([ASKED, {"role": "assistant", "content": 42}], r"message 2 \(assistant\)"),
        ([{"role": "user", "text": "Q"}, {**SAID, **CALL}, SEEN], r"message 1 \(user\)"),
        ([ASKED, {**SAID, **CALL}, {"role": "tool", "output": "1"}, SAID], r"message 3 \(tool\)"),
        ([ASKED, {**SAID, **CALL}, SEEN, {"text": "A"}], r"message 4 \(None\).*has text"),
        ([ASKED, {"role": "assistant", "type": "reasoning", "text": "A"}], r"message 2 \(assistant\).*has role, type"),
        ([ASKED, {"from": "gpt", "type": "reasoning", "text": "A"}], r"message 2 \(gpt\).*has from, type"),
        *(([ASKED, SAID, {"type": kind, "text": "A"}], r"message 3 \(None\).*has type, text") for kind in TYPES),
    ],
)  # fmt: skip
def test_a_message_of_which_no_word_would_be_read_is_refused_by_line(tmp_path, messages, told):
    file = written(tmp_path, {"messages": [ASKED, SAID]}, {"messages": messages})
    with pytest.raises(RecordError, match=rf"mine\.jsonl, line 2: {told}"):
        read_samples(file, CHAT, vocabulary=TOKENIZER.size)
    beside = written(tmp_path, {"prompt": messages[:1], "completion": messages[1:]})
    with pytest.raises(RecordError, match=r"mine\.jsonl, line 1: .*message"):
        read_samples(beside, CHAT, vocabulary=TOKENIZER.size)


def test_an_image_that_a_tool_put_out_is_refused_too(tmp_path):
    use = {"type": "tool_use", "id": "c", "name": "python", "input": {"code": "print(1)"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": {}}]}
    messages = [ASKED, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}, SAID]
    with pytest.raises(RecordError, match=r"line 1: message 3 \(user\) has a part of type 'image'"):
        read_samples(written(tmp_path, {"messages": messages}), CHAT, vocabulary=TOKENIZER.size)


def test_a_pair_of_which_no_word_would_be_read_is_refused(tmp_path):
    file = written(tmp_path, {"prompt": [{"role": "user", "text": "Q"}], "chosen": [SAID], "rejected": [SAID]})
    with pytest.raises(RecordError, match=r"mine\.jsonl, line 1: message 1 \(user\)"):
        read_preferences(file, CHAT, vocabulary=TOKENIZER.size)


@pytest.mark.parametrize("record", [ITEMS, {"messages": ITEMS}, {"history": ITEMS}])
def test_items_of_the_responses_api_have_no_role(tmp_path, record):
    called, final = learnt(tmp_path, record)
    assert "print(1)" in called
    assert final == "A"
    assert len(learnt(tmp_path, purify_transcript(record)[0])) == 2


def test_pairs_may_be_items_of_the_responses_api_too(tmp_path):
    worse = [*ITEMS[:-1], {**ITEMS[-1], "content": [{"type": "output_text", "text": "B"}]}]
    file = written(tmp_path, {"prompt": ITEMS[:1], "chosen": ITEMS[1:], "rejected": worse[1:]})
    assert len(read_preferences(file, CHAT, vocabulary=TOKENIZER.size)) == 1


@pytest.mark.parametrize(
    ("role", "hint"), [("asistant", "assistant"), ("Assistent", "assistant"), ("usr", "user"), ("Humman", "human")]
)
@pytest.mark.parametrize("key", ["role", "from"])
def test_a_misspelt_role_is_refused_by_line(tmp_path, key, role, hint):
    text = "content" if key == "role" else "value"
    talk = [{key: "user", text: "Q"}, {key: role, text: "B"}, {key: "assistant", text: "A"}]
    meant = rf" \(did you mean '{hint}'\?\)"
    with pytest.raises(RecordError, match=rf"mine\.jsonl, line 1: message 2: the role '{role}' is not known{meant}"):
        read_samples(written(tmp_path, {"messages": talk}), CHAT, vocabulary=TOKENIZER.size)


@pytest.mark.parametrize("role", ["planner", "coder", "customer", "user_1", "users", "Critic", "tools"])
def test_a_role_of_another_name_is_the_users(tmp_path, role):
    talk = [{"role": "user", "content": "Q"}, {"role": role, "content": "B"}, {"role": "assistant", "content": "A"}]
    assert learnt(tmp_path, {"messages": talk}) == ["A"]


@pytest.mark.parametrize("name", [name for name in foreign.FORMATS if name != "ours"])
def test_every_format_is_read(tmp_path, name):
    assert learnt(tmp_path, foreign.FORMATS[name](foreign.REPAIRED))


def test_what_has_nothing_to_learn_is_counted_and_named(tmp_path):
    nothing = {"messages": [ASKED, {**SAID, "weight": 0}]}
    file = written(tmp_path, {"messages": [ASKED, SAID]}, *[nothing] * 5)
    with pytest.warns(TaskWarning) as caught:
        assert len(read_samples(file, CHAT, vocabulary=TOKENIZER.size)) == 1
    (said,) = [str(w.message) for w in caught if "none calls a tool" not in str(w.message)]
    assert said == (
        f"{file}: 5 of 6 demonstrations have no words of the model's to learn, and are left out "
        "(line 2; line 3; line 4; …)"
    )
    (tmp_path / "folder").mkdir()
    file.rename(tmp_path / "folder/mine.jsonl")
    with pytest.warns(TaskWarning, match=r"folder: 5 of 6 .*folder/mine\.jsonl, line 2; .*; …\)"):
        read_samples(tmp_path / "folder", CHAT, vocabulary=TOKENIZER.size)


def test_a_role_beside_a_value_says_whose_it_is(tmp_path):
    assert learnt(tmp_path, {"messages": [{"role": "user", "value": "Q"}, {"role": "model", "value": "A"}]}) == ["A"]
