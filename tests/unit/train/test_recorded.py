"""What a record says is what is learnt from it: its tools, what was thought and where, and no half of a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conversing import bytes_of
from retcon.chat.chat import Chat
from retcon.chat.family import FAMILIES
from retcon.chat.template import Template, TemplateFraming
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import RecordError, TaskWarning
from retcon.core.types import Sample, ToolSpec
from retcon.purify.offline import Repairer
from retcon.store.jsonl import write_pairs
from retcon.train.datasets.demonstrations import read_samples
from retcon.train.datasets.preferences import read_preferences
from retcon.transcripts.detector import Detector

pytestmark = pytest.mark.filterwarnings("ignore:.*none calls a tool")
TOKENIZER = ByteTokenizer()
TEMPLATE = """{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% if m.THOUGHT or loop.last %}<think>
{{ m.THOUGHT }}
</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls %}{{ '\\n<tool_call>\\n' }}{{ c.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
OPENING{% endif %}"""
"""Thoughts before words, an empty one in the last turn, tools as they are given."""
PYTHON = ToolSpec("python", "Runs it.")
ASKED: dict[str, Any] = {"role": "user", "content": "Q"}


def chat(opening: str = "", thought: str = "reasoning_content") -> Chat:
    text = TEMPLATE.replace("OPENING", opening).replace("THOUGHT", thought)
    framing = TemplateFraming(Template(text, where="the template"), FAMILIES.find("qwen"))
    return Chat(TOKENIZER, style="qwen", tools=[PYTHON], framing=framing)


def call(number: int = 0, name: str = "python", **arguments: object) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments or {"code": "print(1)"})}
    return {"id": f"c{number}", "type": "function", "function": function}


def said(text: str, *calls: Any, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}


def seen(number: int = 0, text: str = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


def samples(tmp_path: Path, own: Chat, *records: object) -> list[Sample]:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_samples(file, own, vocabulary=TOKENIZER.size)


def learnt(tmp_path: Path, own: Chat, record: object) -> list[str]:
    """What the model is to write, turn by turn."""
    (sample,) = samples(tmp_path, own, record)
    text = TOKENIZER.decode([i for i, mask in zip(sample.ids, sample.mask, strict=True) if mask])
    return text.split("<|im_end|>")[:-1]


CALLED = '\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1)"}}\n</tool_call>'


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("shown_as", ["reasoning_content", "thinking"])
def test_what_was_thought_stands_where_the_template_has_it(tmp_path: Path, key: str, shown_as: str) -> None:
    thinking = {"messages": [ASKED, said("A", call(), **{key: "R"}), seen(), said("B", **{key: "S\n"})]}
    wanted = [f"<think>\nR\n</think>\n\nA{CALLED}", "<think>\nS\n</think>\n\nB"]
    assert learnt(tmp_path, chat(thought=shown_as), thinking) == wanted
    inline = [ASKED, said("<think>R</think>\nA", call()), seen(), said("<think>\nS\n</think>\n\nB")]
    assert learnt(tmp_path, chat(thought=shown_as), {"messages": inline}) == wanted


def test_a_turn_that_opens_with_a_thought_goes_on_from_there(tmp_path: Path) -> None:
    record = {"messages": [ASKED, said("A", call(), reasoning_content="R"), seen(), said("B")]}
    assert learnt(tmp_path, chat("<think>\n"), record) == [f"R\n</think>\n\nA{CALLED}", "\n</think>\n\nB"]
    with pytest.warns(TaskWarning, match="reasoning is left out: the template opens each turn with an empty thought"):
        assert learnt(tmp_path, chat("<think>\n\n</think>\n\n"), record) == [f"A{CALLED}", "B"]


def test_a_template_without_thoughts_has_them_before_the_words(tmp_path: Path) -> None:
    """As words, since nothing else is said of them; but closed where the template opens them."""
    record = {"messages": [ASKED, said("A", call(), reasoning_content="R"), seen(), said("B")]}
    plain = TEMPLATE.replace("{% if m.THOUGHT or loop.last %}<think>\n{{ m.THOUGHT }}\n</think>\n\n{% endif %}", "")
    for opening, wanted in (
        ("", [f"R\n\nA{CALLED}", "B"]),
        ("<think>\n", [f"R\n</think>\n\nA{CALLED}", "\n</think>\n\nB"]),
    ):
        framing = TemplateFraming(Template(plain.replace("OPENING", opening)), FAMILIES.find("qwen"))
        assert learnt(tmp_path, Chat(TOKENIZER, style="qwen", tools=[PYTHON], framing=framing), record) == wanted


def test_gpt_oss_thinks_on_a_channel_of_its_own(tmp_path: Path) -> None:
    own = Chat(bytes_of("harmony"), style="chat_templates:GPT_OSS", tools=[PYTHON])
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"messages": [ASKED, said("A", reasoning_content="R")]}))
    (sample,) = read_samples(file, own, vocabulary=own.tokenizer.size)
    written = own.tokenizer.decode([i for i, mask in zip(sample.ids, sample.mask, strict=True) if mask])
    final = "<|start|>assistant<|channel|>final<|message|>A<|return|>"
    assert written == f"<|channel|>analysis<|message|>R<|end|>{final}"


BLOCKS: dict[str, Any] = {
    "messages": {"messages": [ASKED, said("A", call(), reasoning_content="R"), seen()]},
    "parts": {"messages": [ASKED, {**said("", call()), "content": [
        {"type": "thinking", "thinking": "R"}, {"type": "text", "text": "A"}]}, seen()]},
    "anthropic": {"messages": [ASKED, {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "R"}, {"type": "text", "text": "A"},
        {"type": "tool_use", "id": "c", "name": "python", "input": {"code": "print(1)"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]}]},
    "bedrock": {"messages": [{"role": "user", "content": [{"text": "Q"}]}, {"role": "assistant", "content": [
        {"reasoningContent": {"reasoningText": {"text": "R"}}}, {"text": "A"},
        {"toolUse": {"toolUseId": "c", "name": "python", "input": {"code": "print(1)"}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c", "content": [{"text": "1"}]}}]}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Q"}]}, {"role": "model", "parts": [
        {"text": "R", "thought": True}, {"text": "A"},
        {"functionCall": {"name": "python", "args": {"code": "print(1)"}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "python", "response": {"output": "1"}}}]}]},
    "langchain": {"messages": [{"type": "human", "content": "Q"}, {"type": "ai", "content": "A",
        "additional_kwargs": {"reasoning_content": "R"},
        "tool_calls": [{"id": "c", "name": "python", "args": {"code": "print(1)"}}]},
        {"type": "tool", "tool_call_id": "c", "content": "1"}]},
    "responses": {"input": [ASKED, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "R"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c", "name": "python", "arguments": '{"code": "print(1)"}'},
        {"type": "function_call_output", "call_id": "c", "output": "1"}]},
}  # fmt: skip


@pytest.mark.parametrize("record", BLOCKS.values(), ids=BLOCKS)
def test_formats_tell_what_was_thought_from_what_was_said(tmp_path: Path, record: Any) -> None:
    assert learnt(tmp_path, chat(), record) == [f"<think>\nR\n</think>\n\nA{CALLED}"]


LOOKED = [ASKED, said("A", call(name="get_weather", city="Oslo")), seen(), said("B")]


def test_a_call_of_a_tool_that_is_not_shown_is_warned_of(tmp_path: Path) -> None:
    said_so = (
        r"mine\.jsonl: calls are learnt of tools that the prompt does not show: get_weather \(first at .*, line 2\)"
    )
    for tools in (None, [], [{"name": "get_weathers"}]):
        with pytest.warns(TaskWarning, match=said_so):
            samples(tmp_path, chat(), {"messages": [ASKED, said("B")]}, {"messages": LOOKED, "tools": tools})
    with pytest.raises(RecordError, match=r"mine\.jsonl, line 1: 'tools' has \{\"a\": 1\}, expected a tool"):
        samples(tmp_path, chat(), {"messages": LOOKED, "tools": [{"a": 1}]})
    with pytest.raises(RecordError, match=r"mine\.jsonl, line 1: 'tools' is text that is not JSON"):
        samples(tmp_path, chat(), {"messages": LOOKED, "tools": "[{"})


CUT = said("A", call())
WHOLE = {"messages": [ASKED, CUT, seen(), said("B")]}
NO_RESULT, NO_CALL = (
    "the call of 'python' in the model's turn 1 has no result",
    "a tool's result answers no call, found",
)
HALF: dict[str, tuple[Any, str]] = {
    "call, then the model": ([ASKED, CUT, said("B", call(1)), seen(1), said("C")], NO_RESULT),
    "call, then the user": ([ASKED, CUT, ASKED, said("B")], NO_RESULT),
    "one of two": ([ASKED, said("A", call(), call(1)), seen(1), said("B")], NO_RESULT),
    "result first": ([ASKED, seen(), said("B")], f"{NO_CALL} '1'"),
    "result after the user": ([ASKED, CUT, seen(), said("B"), ASKED, seen(1, "2"), said("C")], f"{NO_CALL} '2'"),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "why"), HALF.values(), ids=HALF)
def test_half_a_call_is_left_out_and_counted(tmp_path: Path, messages: Any, why: str) -> None:
    half = {"messages": messages}
    with pytest.warns(TaskWarning, match=rf"left out: 2 records with half a call: .*mine\.jsonl, line 2: {why}"):
        assert len(samples(tmp_path, chat(), WHOLE, half, half, WHOLE)) == 2


def test_half_a_call_is_left_out_in_other_formats_too(tmp_path: Path) -> None:
    human, gpt, lone = (
        {"from": who, "value": text} for who, text in (("human", "Q"), ("gpt", "B"), ("observation", "1"))
    )
    whole = {"from": "function_call", "value": '{"name": "python", "arguments": {}}'}
    langchain, items = BLOCKS["langchain"]["messages"], BLOCKS["responses"]["input"]
    for record, other in (
        ({"conversations": [human, whole, lone, gpt]}, {"conversations": [human, lone, gpt]}),
        (BLOCKS["langchain"], {"messages": [langchain[0], langchain[2], *langchain[1:]]}),
        (BLOCKS["responses"], {"input": [ASKED, items[-1], *items[1:]]}),
    ):
        with pytest.warns(TaskWarning, match=r"line 2: a tool's result answers no call, found '1'"):
            assert len(samples(tmp_path, chat(), record, other)) == 1


def test_a_call_that_ends_the_record_is_learnt(tmp_path: Path) -> None:
    """As in data of single calls (xLAM, ToolACE)."""
    _, found = samples(tmp_path, chat(), WHOLE, {"messages": [ASKED, said("A", call())]})
    assert TOKENIZER.decode(found.ids).endswith(f"<think>\n\n</think>\n\nA{CALLED}<|im_end|>")


def test_pairs_keep_the_tools_of_their_record(tmp_path: Path) -> None:
    error = "Traceback (most recent call last):\n  File \"<stdin>\", line 1\nNameError: name 'sm' is not defined"
    messages = [ASKED, said("I add.", call(0, code="print(sm([4, 6]))")), seen(0, error),
                said("I add.", call(1, code="print(sum([4, 6]))")), seen(1, "10"), said("10")]  # fmt: skip
    tool = {"type": "function", "function": {"name": "python", "strict": True, "parameters": {}}}
    for tools in ([tool], json.dumps([tool]), None):
        record = {"messages": messages} | ({} if tools is None else {"tools": tools})
        form = Detector().format_of(record)
        assert form is not None
        reading = form.read(record, "r")
        (pair,) = reading.pairs([Repairer()(one) for one in reading.trajectories])
        assert pair.about.get("tools") == tools
        write_pairs(tmp_path / "pairs.jsonl", [pair])
        (found,) = read_preferences(tmp_path / "pairs.jsonl", chat(), vocabulary=TOKENIZER.size)
        shown = json.dumps(PYTHON.as_function() if tools is None else tool)
        assert TOKENIZER.decode(found.chosen.ids).startswith(f"<|im_start|>system\n{shown}\n<|im_end|>\n")
