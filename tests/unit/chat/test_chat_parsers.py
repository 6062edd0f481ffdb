"""What each family takes for a call, text by text."""

from __future__ import annotations

import pytest

from conversing import family_of
from retcon.chat.formats import find_tagged
from retcon.chat.learned import typed_arguments
from retcon.chat.markdown import find_calls
from retcon.chat.types import FoundCall
from retcon.core.types import ToolSpec

P = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>python\n```json\n"
C = "<tool_call>\n<function=python>\n"


def T(q: str) -> str:
    return f'<tool_call>{{"name": "s", "arguments": {{"q": "{q}"}}}}</tool_call>'


def F(q: str) -> str:
    return f"<tool_call><function=s><parameter=q>{q}</parameter></function></tool_call>"


CALLS = [
    ("bare", '{"name": "python", "parameters": {"code": "1"}}', [("python", {"code": "1"}, 0)]),
    ("bare", 'so\n {"name": "s", "arguments": {"q": 1}}', [("s", {"q": 1}, 4)]),
    ("bare", '{"type": "function", "name": "s", "parameters": {}}', [("s", {}, 0)]),
    ("bare", 'a<|python_tag|>{"name": "s", "parameters": {}}; {"name": "t", "parameters": {}}',
     [("s", {}, 1), ("t", {}, 48)]),
    ("bare", "<|python_tag|>print(1)", []),
    ("bare", 'the set {"name": 1}', []),
    ("bare", '{"name": "Alice", "age": 3}', []),
    ("bare", 'a schema:\n{"type": "object", "required": []}\nthat is it', []),
    ("bare", '{"name": 1, "parameters": {}}', []),
    ("bare", '{"name": "s", "parameters": 1}', [("s", '{"name": "s", "parameters": 1}', 0)]),
    ("bare", '{"type": "a"}\n{"name": "s", "parameters": {}}\n{"name": "b"}', [("s", {}, 14)]),
    ("bare", '{"type": "function", "function": {"name": "s", "arguments": {"q": 1}}}', [("s", {"q": 1}, 0)]),
    ("bare", '{"name": "<|python_tag|>"}', []),
    ("objects", f"{T('a')}\n{T('</tool_call>')}", [("s", {"q": "a"}, 0), ("s", {"q": "</tool_call>"}, 62)]),
    ("objects", '<tool_call>[{"name": "s", "arguments": {}}, {"name": "t", "arguments": {}}]</tool_call>',
     [("s", {}, 0), ("t", {}, 44)]),
    ("objects", '<tool_call>{"name": "s", "arguments": {}}{"name": "t", "arguments": {}}</tool_call>',
     [("s", {}, 0), ("t", {}, 41)]),
    ("objects", '<tool_call>\n{"name": "s", "arguments": "{\\"q\\": 1}"}', [("s", {"q": 1}, 0)]),
    ("objects", '<tool_call>{"name": "s", "arguments": {"q": 1},}</tool_call>',
     [("s", '{"name": "s", "arguments": {"q": 1},}', 0)]),
    ("objects", f"<think>{T('a')}</think>{T('b')}", [("s", {"q": "b"}, 76)]),
    ("objects", f"<think>{T('a')}", []),
    ("objects", f"[THINK]{T('a')}[/THINK]4", []),
    ("objects", f"{T('a')}{T('</think>')}", [("s", {"q": "a"}, 0), ("s", {"q": "</think>"}, 61)]),
    ("objects", f"in <tool_call> or {T('a')}", [("s", {"q": "a"}, 18)]),
    ("listed", '[TOOL_CALLS] [{"name": "s", "arguments": {"q": "[TOOL_CALLS]"}}, {"name": "t", "arguments": {}}]',
     [("s", {"q": "[TOOL_CALLS]"}, 0), ("t", {}, 65)]),
    ("listed", '[TOOL_CALLS][{"name": "s", "arguments": {"q": 1}},]', [("s", {"q": 1}, 0)]),
    ("listed", '[TOOL_CALLS][{"name": "s", "arguments": {"q": 1}', [("s", '{"name": "s", "arguments": {"q": 1}', 0)]),
    ("listed", "[TOOL_CALLS]", [("python", "", 0)]),
    ("named", 'a[TOOL_CALLS]s[ARGS]{"q": 1}[TOOL_CALLS]t[ARGS]{}', [("s", {"q": 1}, 1), ("t", {}, 28)]),
    ("named", "[TOOL_CALLS]s[ARGS]{oh[TOOL_CALLS]t[ARGS]{}", [("s", "{oh", 0), ("t", {}, 22)]),
    ("fenced", P + '{"code": "<｜tool▁call▁end｜>"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
     [("python", {"code": "<｜tool▁call▁end｜>"}, 0)]),
    ("fenced", P + "print(1)\n```<｜tool▁call▁end｜>", [("python", "print(1)", 0)]),
    ("tags", C + "<parameter=code>\nx = '</parameter>'\n\nprint(x)\n</parameter>\n</function>\n</tool_call>",
     [("python", {"code": "x = '</parameter>'\n\nprint(x)"}, 0)]),
    ("tags", "so\n<function=s>\n</function>\n</tool_call>", [("s", {}, 3)]),
    ("tags", "write <function=s> or <tool_call>", [("python", "", 22)]),
    ("tags", C + "<parameter=code>\n1\n</function>\n</tool_call>", [("python", "<parameter=code>\n1", 0)]),
    ("tags", "<function=s>\n<parameter=q>\n1\n</parameter>\n</function>", [("s", {"q": "1"}, 0)]),
    ("tags", C + "<parameter=a>\n1\n<parameter=code>\n2\n</parameter>\n</function>\n</tool_call>",
     [("python", "<parameter=a>\n1\n<parameter=code>\n2\n</parameter>", 0)]),
    ("tags", C + "<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>",
     [("python", "<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>", 0)]),
    ("tags", 'a<tool_call>{"name": "s", "arguments": {"q": 1}}</tool_call>', [("s", {"q": 1}, 1)]),
    ("tags", "a<tool_call>s(q=1)</tool_call>", [("python", "s(q=1)", 1)]),
    ("tags", C + "<parameter=code>\n<![CDATA[a </parameter>\n]]>\n</parameter>\n</function>\n</tool_call>",
     [("python", {"code": "a </parameter>\n"}, 0)]),
    ("pairs", "<tool_call>s<arg_key>q</arg_key>\n<arg_value>1</arg_value></tool_call>", [("s", {"q": "1"}, 0)]),
    ("quoted", "<|tool_call>call:s{q:[1}<tool_call|>", [("s", "{q:[1}", 0)]),
    ("quoted", "<|tool_call>call:s{q:[1,{b:null}]}", [("s", {"q": [1, {"b": None}]}, 0)]),
    ("quoted", '<|tool_call>call:s{q:<|"|>a, b:1}<|"|>,n:[1,<|"|>x<|"|>],o:{k:true}}<tool_call|>',
     [("s", {"q": "a, b:1}", "n": [1, "x"], "o": {"k": True}}, 0)]),
    ("pythonic", '<|tool_call_start|>[s(q="a)"), t(n=[1, true])]<|tool_call_end|>',
     [("s", {"q": "a)"}, 0), ("t", {"n": [1, True]}, 0)]),
    ("pythonic", "<|tool_call_start|>[s(1)]<|tool_call_end|>", [("python", "[s(1)]", 0)]),
    ("plain", "so\n```python\nprint(1)\n```", [("python", {"code": "print(1)"}, 3)]),
    ("plain", "<think>\n```python\nprint(1)\n```", []),
    ("harmony", '<|channel|>commentary to=functions.s <|constrain|>json<|message|>{"q": "<|end|><|message|>"}',
     [("s", {"q": "<|end|><|message|>"}, 0)]),
    ("harmony", "<|channel|>analysis to=python code<|message|>print(1)<|end|>", [("python", {"code": "print(1)"}, 0)]),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|>"
     "<|start|>assistant to=functions.s<|channel|>commentary<|message|>{}", [("s", {}, 39)]),
    ("harmony", "<|channel|>commentary to=functions.s<|message|>{oh<|call|>", [("s", "{oh", 0)]),
    ("harmony", "<|channel|>commentary<|message|>I call to=functions.s now<|end|>", []),
    ("harmony", "<|channel|>commentary to=browser.search<|message|>{}", [("browser.search", {}, 0)]),
    ("harmony", "<|channel|>analysis to=browser.open<|message|>4<|call|>"
     "<|start|>assistant<|channel|>final<|message|>so", [("browser.open", "4", 0)]),
    ("harmony", "<|channel|>commentary to=s<|message|>{}<|call|>", [("s", {}, 0)]),
    ("harmony", "<|channel|>commentary to=browser.search<|message|>{}<|end|>", []),
    ("harmony", "<|channel|>final to=user<|message|>{}", []),
    ("markdown", "- ```py\n  x\n   y\n  ```", [("python", {"code": "  x\n   y"}, 2)]),
    ("markdown", "  ```py\n  ```\n   ```py\n   x", [("python", {"code": ""}, 2), ("python", "   x", 17)]),
    ("qwen", '<think>\n<tool_call>{}</tool_call></think><tool_call>{"name": "s", "arguments": {}}</tool_call>',
     [("s", {}, 41)]),
    ("qwen", f"{T('a')}{T('</think>')}{T('c')}",
     [("s", {"q": "a"}, 0), ("s", {"q": "</think>"}, 61), ("s", {"q": "c"}, 129)]),
    ("qwen", f"so {T('a')} or {T('</think>')}</think>{T('b')}", [("s", {"q": "b"}, 144)]),
    ("qwen", f"in <tool_call> and </think>{T('</think>')}", [("s", {"q": "</think>"}, 27)]),
    ("qwen", "in <tool_call> and </think>4", []),
]  # fmt: skip


@pytest.mark.parametrize(("family", "text", "calls"), CALLS)
def test_calls(family: str, text: str, calls: list[tuple[str, object, int]]) -> None:
    assert [(call.name, call.arguments, call.char) for call in family_of(family).find_calls(text)] == calls


TAGGED = [
    (f"{F('a')}{F('</think>')}", [("s", {"q": "a"}, 0), ("s", {"q": "</think>"}, 72)]),
    (f"so {F('a')} or {F('</think>')}</think>{F('b')}", [("s", {"q": "b"}, 166)]),
    (f"in <tool_call> and <function=s> </think>{F('</think>')}", [("s", {"q": "</think>"}, 40)]),
    (C + "<parameter=code>\nx = '</parameter>'\n\nprint(x)\n</parameter>\n</function>\n</tool_call>",
     [("python", {"code": "x = '</parameter>'\n\nprint(x)"}, 0)]),
    ("a<tool_call><function=s><parameter=q>1</parameter><parameter=r></parameter></function></tool_call>"
     "<tool_call><function=t></function></tool_call>", [("s", {"q": "1", "r": ""}, 1), ("t", {}, 98)]),
    ("so\n<function=s>\n</function>\n</tool_call>", [("s", {}, 3)]),
    ("write <function=s> or <tool_call>", [("python", "", 22)]),
    ("write <function=s>", []),
    (C + "<parameter=code>\n1\n</function>\n</tool_call>",
     [("python", "<parameter=code>\n1", 0)]),
    (C + "<parameter=code>\n1\n", [("python", "<parameter=code>\n1", 0)]),
    ('<tool_call>\n{"name": "s", "arguments": {}}\n</tool_call>', [("s", {}, 0)]),
    ("<tool_call>no<tool_call><function=s></function></tool_call>", [("s", {}, 13)]),
    (f"<think>{C}</function></tool_call></think>{C}</function></tool_call>", [("python", {}, 68)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls"), TAGGED)
def test_calls_in_tags(text: str, calls: list[tuple[str, object, int]]) -> None:
    assert [(call.name, call.arguments, call.char) for call in find_tagged(text)] == calls


@pytest.mark.parametrize(("text", "calls"), [
    ("1. So:\n\n   ```python\n   for n in x:\n       n\n\n   y\n   ```\n2. And",
     [("python", {"code": "for n in x:\n    n\n\ny"}, 11)]),
    ("- ```py\n  x\n   y\n  ```", [("python", {"code": "x\n y"}, 2)]),
    ("- a\n    - b ```py\n      x\n      ```\n", [("python", {"code": "x"}, 12)]),
    ("\t```py\n\tx\n\t```", [("python", {"code": "x"}, 1)]),
    (" ```py\n    x\n```", [("python", {"code": "    x"}, 1)]),
    ("   ```py\nx\n  y\n   ```", [("python", {"code": "x\n  y"}, 3)]),
    ("so ```py\n   x\n   ```", [("python", {"code": "   x"}, 3)]),
    ('```py\nx = """\n    ```\n"""\n```', [("python", {"code": 'x = """\n    ```\n"""'}, 0)]),
    ("  ```py\n  ```\n   ```py\n   x", [("python", {"code": ""}, 2), ("python", "   x", 17)]),
])  # fmt: skip
def test_blocks_in_items_of_lists(text: str, calls: list[tuple[str, object, int]]) -> None:
    assert [(call.name, call.arguments, call.char) for call in find_calls(text, indented=True)] == calls


@pytest.mark.parametrize(("family", "text", "shown"), [
    ("qwen", "<think>hm</think>It is 4.", "<think>hm</think>It is 4."),
    ("harmony", "It is 4.", "It is 4."),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It is 4.",
     "It is 4."),
    ("harmony", "<|channel|>final <|constrain|>json<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>b",
     "{}\nb"),
    ("harmony", "<|channel|>analysis<|message|>the final", ""),
    ("harmony", "<|channel|>fin", ""),
])  # fmt: skip
def test_what_a_user_is_shown_of_a_turn(family: str, text: str, shown: str) -> None:
    assert family_of(family).visible_text(text) == shown


@pytest.mark.parametrize(("family", "text", "label"), [
    ("listed", '[TOOL_CALLS][{"name": "s", "arguments": {}, "id": "abc"}]', "abc"),
    ("harmony", "<|channel|>analysis to=python<|message|>1", "python"),
])  # fmt: skip
def test_what_the_model_calls_its_call(family: str, text: str, label: str) -> None:
    (call,) = family_of(family).find_calls(text)
    assert call.label == label


def test_arguments_without_types_get_those_of_the_schema() -> None:
    """As a server's parser would read them; what the schema does not say stays text, for its check to refuse."""
    properties = {
        "code": {"type": "string"}, "top": {"type": "integer"}, "half": {"type": ["number", "null"]},
        "wide": {"type": "boolean"}, "tags": {"type": "array"}, "kind": {"enum": ["1", "2"]}, "any": {},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "other": {"$ref": "#/$defs/other"},
    }  # fmt: skip
    tools = [ToolSpec("s", "", {"type": "object", "properties": properties})]

    def read(**given: str) -> object:
        return typed_arguments(FoundCall("s", dict(given), 7, "l"), tools).arguments

    assert read(code="1", top="2", half="0.5", wide="True", tags='["a", 1]', kind="1", any="1", maybe="x") == {
        "code": "1", "top": 2, "half": 0.5, "wide": True, "tags": ["a", 1], "kind": "1", "any": "1", "maybe": "x",
    }  # fmt: skip
    assert read(half="None", maybe="null", other='{"a": 1}') == {"half": None, "maybe": None, "other": {"a": 1}}
    assert read(top="two", wide="0", new="1", code="null") == {"top": "two", "wide": 0, "new": "1", "code": "null"}
    call = FoundCall("t", {"top": "2"}, 0)
    assert typed_arguments(call, tools) is call
