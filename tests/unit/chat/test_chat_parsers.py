"""What each family takes for a call, text by text."""

from __future__ import annotations

import pytest

from retcon.chat.registry import named

P = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>python\n```json\n"
CALLS = [
    ("llama3", '{"name": "python", "parameters": {"code": "1"}}', [("python", {"code": "1"}, 0)]),
    ("llama3", 'so\n {"name": "s", "arguments": {"q": 1}}', [("s", {"q": 1}, 4)]),
    ("llama3", '{"type": "function", "name": "s", "parameters": {}}', [("s", {}, 0)]),
    ("llama3", "<|python_tag|>print(1)", [("python", {"code": "print(1)"}, 0)]),
    ("llama3", 'a<|python_tag|>{"name": "s", "parameters": {}}; {"name": "t", "parameters": {}}',
     [("s", {}, 1), ("t", {}, 48)]),
    ("llama3", '<|python_tag|>x = 1\n{"name": "s", "parameters": {}}',
     [("python", {"code": 'x = 1\n{"name": "s", "parameters": {}}'}, 0)]),
    ("llama3", '{"name": "s", "parameters": {"q": "1"', [("s", '{"name": "s", "parameters": {"q": "1"', 0)]),
    ("llama3", 'the set {"name": 1}', []),
    ("mistral", '[TOOL_CALLS] [{"name": "s", "arguments": {"q": "[TOOL_CALLS]"}}, {"name": "t", "arguments": {}}]',
     [("s", {"q": "[TOOL_CALLS]"}, 0), ("t", {}, 65)]),
    ("mistral", 'a[TOOL_CALLS]s[ARGS]{"q": 1}[TOOL_CALLS]t[CALL_ID]abc[ARGS]{}', [("s", {"q": 1}, 1), ("t", {}, 28)]),
    ("mistral", '[TOOL_CALLS][{"name": "s", "arguments": {"q": 1}', [("s", '[{"name": "s", "arguments": {"q": 1}', 0)]),
    ("mistral", "[TOOL_CALLS]", [("python", "", 0)]),
    ("mistral", "[TOOL_CALLS]s[ARGS]{oh[TOOL_CALLS]t[ARGS]{}", [("s", "{oh", 0), ("t", {}, 22)]),
    ("deepseek", P + '{"code": "<｜tool▁call▁end｜>"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
     [("python", {"code": "<｜tool▁call▁end｜>"}, 0)]),
    ("deepseek", 'a<｜tool▁call▁begin｜>s<｜tool▁sep｜>{"q": 1}<｜tool▁call▁end｜>', [("s", {"q": 1}, 1)]),
    ("deepseek", P + "print(1)\n```<｜tool▁call▁end｜>", [("python", "print(1)", 0)]),
    ("harmony", '<|channel|>commentary to=functions.s <|constrain|>json<|message|>{"q": "<|end|><|message|>"}',
     [("s", {"q": "<|end|><|message|>"}, 0)]),
    ("harmony", "<|channel|>analysis to=python code<|message|>print(1)<|end|>", [("python", {"code": "print(1)"}, 0)]),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|>"
     "<|start|>assistant to=functions.s<|channel|>commentary<|message|>{}", [("s", {}, 39)]),
    ("harmony", "<|channel|>commentary to=functions.s<|message|>{oh<|call|>", [("s", "{oh", 0)]),
    ("harmony", "<|channel|>commentary<|message|>I call to=functions.s now<|end|>", []),
    ("harmony", "<|channel|>commentary to=browser.search<|message|>{}", []),
    ("gemma", "so\n```tool_code\nprint(1)\n```", [("python", {"code": "print(1)"}, 3)]),
    ("gemma", '```tool_code\n{"name": "s", "parameters": {"q": 1}}\n```', [("s", {"q": 1}, 0)]),
    ("gemma", '```tool_code\n{"a": 1}\n```', [("python", {"code": '{"a": 1}'}, 0)]),
    ("gemma", "```tool_code\nprint(1)", [("python", "print(1)", 0)]),
    ("qwen", '<think>\n<tool_call>{}</tool_call></think><tool_call>{"name": "s", "arguments": {}}</tool_call>',
     [("s", {}, 41)]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "calls"), CALLS)
def test_calls(family: str, text: str, calls: list[tuple[str, object, int]]) -> None:
    assert [(call.name, call.arguments, call.char) for call in named(family).find_calls(text)] == calls


@pytest.mark.parametrize(("family", "text", "label"), [
    ("mistral", '[TOOL_CALLS]s[CALL_ID]abc[ARGS]{}', "abc"),
    ("mistral", '[TOOL_CALLS][{"name": "s", "arguments": {}, "id": "abc"}]', "abc"),
    ("harmony", "<|channel|>analysis to=python<|message|>1", "python"),
])  # fmt: skip
def test_what_the_model_calls_its_call(family: str, text: str, label: str) -> None:
    (call,) = named(family).find_calls(text)
    assert call.label == label
