"""What is put together turn by turn is what the model's own template makes of the whole, in text and in ids.

Real tokenizers and their templates where they are there; `docs/models/chat.md` says where ids differ, and why.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chat_templates import HARMONY
from conversing import DATA, TOOLS, Turned, conversed, ids_of, real_folder, text_of
from retcon.chat import opening
from retcon.chat.chat import Chat
from retcon.chat.learned import EXPLAINED
from retcon.chat.opening import open_chat
from retcon.chat.template import Template, read_template
from retcon.chat.tokenizer import load_tokenizer
from retcon.core.errors import TaskWarning

pytestmark = pytest.mark.torch  # for the tokenizers package
SHOWN = [tool.as_function() for tool in TOOLS]
CODE = {"code": "print(6 * 7)"}
OTHER = {"query": 'a "b" </tool_call> é', "top": 2}


def message(role: str, content: str | None, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(*calls: tuple[str, dict[str, object]], as_text: bool = False) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "id": f"c{n}",
            "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False) if as_text else given},
        }
        for n, (name, given) in enumerate(calls)
    ]


def together(chat: Chat, turns: Sequence[Turned]) -> tuple[str, list[int]]:
    segments = [s for part in conversed(chat, turns) for s in part]
    return text_of(segments), ids_of(segments)


def own(folder: Path) -> Template:
    source = read_template(folder)
    assert source is not None
    return source.compiled()


LOADED: dict[tuple[bytes, ...], Any] = {}


@pytest.fixture(autouse=True)
def _each_tokenizer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a real one takes two seconds."""

    def load(folder: Path) -> Any:
        names = ("tokenizer.json", "tokenizer_config.json")
        files = tuple((Path(folder) / name).read_bytes() if (Path(folder) / name).is_file() else b"" for name in names)
        if files not in LOADED:
            LOADED[files] = load_tokenizer(folder)
        return LOADED[files]

    monkeypatch.setattr(opening, "load_tokenizer", load)


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    return real_folder("qwen3", tmp_path)


TALK = [message("system", "Solve it."), message("user", "What is 6 times 7?")]
THOUGHT = "<think>\nsix times seven\n</think>\n\n"


@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_qwen3_with_several_calls_observations_and_thinking(qwen3: Path, thought: str) -> None:
    """At every point at which the model is asked to go on."""
    chat, template = open_chat(qwen3, system="Solve it.", tools=TOOLS), own(qwen3)
    turns: list[Turned] = [
        (f"{thought}I try.", [("python", CODE)], ["42\nis it"]),
        (f"{thought}Twice.", [("python", CODE), ("search", OTHER)], ["", '{"a": "é"}']),
    ]
    whole = [
        *TALK,
        message("assistant", f"{thought}I try.", tool_calls=called(("python", CODE))),
        message("tool", "42\nis it"),
        message("assistant", f"{thought}Twice.", tool_calls=called(("python", CODE), ("search", OTHER))),
        message("tool", ""),
        message("tool", '{"a": "é"}'),
    ]
    for count, end in ((0, 2), (1, 4), (2, 7)):
        text, ids = together(chat, turns[:count])
        assert text == template.render(whole[:end], SHOWN)
        assert ids == chat.tokenizer.encode(text, special=True)


def test_the_template_drops_earlier_thinking_and_a_rollout_keeps_what_was_sampled(qwen3: Path) -> None:
    chat, template = open_chat(qwen3, system="Solve it.", tools=TOOLS), own(qwen3)
    text, _ = together(chat, [(f"{THOUGHT}42.", (), ["Why?"])])
    rendered = template.render([*TALK, message("assistant", f"{THOUGHT}42."), message("user", "Why?")], SHOWN)
    assert THOUGHT in text
    assert rendered == text.replace(THOUGHT, "")


def test_thinking_can_be_turned_off_by_the_template(qwen3: Path) -> None:
    chat = open_chat(qwen3, tools=TOOLS, thinking=False)
    source = read_template(qwen3)
    assert source is not None
    template = source.compiled({"enable_thinking": False})
    text, _ = together(chat, [("I try.", [("python", CODE)], ["42"])])
    asked = [message("user", "What is 6 times 7?"), message("assistant", "I try.", tool_calls=called(("python", CODE)))]
    empty = "<think>\n\n</think>\n\n"
    assert text.endswith(f"<|im_start|>assistant\n{empty}")
    # the template takes the empty thought out of the turn that it opened with it; a rollout keeps it
    assert template.render([*asked, message("tool", "42")], SHOWN) == text.replace(empty, "", 1)


def test_a_call_in_a_thought_is_none(qwen3: Path) -> None:
    chat = open_chat(qwen3, tools=TOOLS)
    block = '<tool_call>\n{"name": "python", "arguments": {"code": "1"}}\n</tool_call>'
    assert not chat.parse(chat.tokenizer.encode(f"<think>\n{block}\n</think>\n\nno"), prefix="0").calls
    (call,) = chat.parse(chat.tokenizer.encode(f"<think>\n{block}\n</think>\n\n{block}"), prefix="0").calls
    assert call.start is not None


@pytest.mark.parametrize("words", ["I try.", ""])
def test_qwen3_coder_with_its_tags(qwen3: Path, words: str) -> None:
    """Over Qwen3's tokenizer, whose cutting of text is Qwen3-Coder's too."""
    file = DATA / "qwen3_coder/chat_template.jinja"
    if not file.is_file():
        pytest.skip(f"no {file}: Qwen3-Coder's chat template (set RETCON_DATA)")
    (qwen3 / file.name).write_bytes(file.read_bytes())
    chat, template = open_chat(qwen3, system="Solve it.", tools=TOOLS), own(qwen3)
    calls: list[tuple[str, dict[str, object]]] = [("python", CODE), ("search", OTHER)]
    turns: list[Turned] = [(words, calls[:1], ["42\nis it"]), (words, calls, ["", '{"a": "é"}']), ("so", (), ["Why?"])]
    whole = [
        *TALK, message("assistant", words, tool_calls=called(("python", CODE))), message("tool", "42\nis it"),
        message("assistant", words, tool_calls=called(*calls)), message("tool", ""), message("tool", '{"a": "é"}'),
        message("assistant", "so"), message("user", "Why?"),
    ]  # fmt: skip
    for count, end in ((0, 2), (1, 4), (2, 7), (3, 9)):
        text, ids = together(chat, turns[:count])
        assert text == template.render(whole[:end], SHOWN)
        assert ids == chat.tokenizer.encode(text, special=True)
    parsed = chat.parse(chat.render_turn(words, calls).ids or (), prefix="0")
    assert [(call.name, call.arguments) for call in parsed.calls] == calls


@pytest.mark.parametrize("words", ["x", "  x", "\n\nx", "it.", "it.\n", ""])
def test_ids_are_those_of_the_whole_text_whatever_stands_at_the_edges(qwen3: Path, words: str) -> None:
    """Of a line end in the glue and one that somebody's words begin or end with, Qwen3 makes one token."""
    chat = open_chat(qwen3, system=words, tools=TOOLS)
    segments = [s for part in conversed(chat, [("so", [("python", CODE)], [words])], words) for s in part]
    assert ids_of(segments) == chat.tokenizer.encode(text_of(segments), special=True)
    assert all(chat.tokenizer.decode(s.ids or ()) == s.text for s in segments)


def test_deepseek_whose_template_shows_no_tools_writes_code_blocks(tmp_path: Path) -> None:
    folder = real_folder("deepseek_v3", tmp_path)
    with pytest.warns(TaskWarning, match="calls are written as ```python blocks, which the system prompt explains"):
        chat = open_chat(folder, system="Solve it.", tools=TOOLS[:1])
    turns: list[Turned] = [("I try.", [("python", CODE)], ["42"]), ("It is 42.", (), ["Why?"])]
    block = f"I try.\n```python\n{CODE['code']}\n```"
    whole = [
        message("system", f"Solve it.\n\n{EXPLAINED}"), TALK[1], message("assistant", block),
        message("user", "```output\n42\n```"), message("assistant", "It is 42."), message("user", "Why?"),
    ]  # fmt: skip
    for count, end in ((0, 2), (1, 4), (2, 6)):
        text, ids = together(chat, turns[:count])
        assert text == own(folder).render(whole[:end])
        assert ids == chat.tokenizer.encode(text, special=True)


def test_gpt_oss_writes_calls_otherwise_than_its_template(tmp_path: Path) -> None:
    folder = real_folder("gptoss", tmp_path)
    (folder / "chat_template.jinja").write_text(HARMONY)
    chat = open_chat(folder, system="Solve it.", tools=TOOLS[:1])
    assert chat.style == "harmony"
    text, ids = together(chat, [("I try.", [("python", CODE)], ["42"]), ("It is 42.", (), ["Why?"])])
    assert ids == chat.tokenizer.encode(text, special=True)
    assert text.startswith(own(folder).render(TALK, SHOWN[:1]))
    assert text.partition("What is 6 times 7?<|end|>")[2] == (
        "<|start|>assistant"
        "<|channel|>analysis<|message|>I try.<|end|><|start|>assistant<|channel|>commentary to=functions.python "
        '<|constrain|>json<|message|>{"code": "print(6 * 7)"}<|call|><|start|>functions.python to=assistant'
        "<|channel|>commentary<|message|>42<|end|><|start|>assistant<|channel|>final<|message|>It is 42.<|return|>"
        "<|start|>user<|message|>Why?<|end|><|start|>assistant"
    )
