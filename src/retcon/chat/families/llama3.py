"""Llama 3: calls are JSON, or Python after `<|python_tag|>`; observations are turns of the role `ipython`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from retcon.chat.family import Family, Written, joined, with_system
from retcon.chat.hermes import to_call
from retcon.chat.jsons import as_json, read_value
from retcon.chat.types import Answer, FoundCall, Piece, Told, glue, words
from retcon.core.types import ToolSpec

BEGIN, START, HEADED, END, HANDED = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"
)  # fmt: skip
PYTHON = "<|python_tag|>"
_OBJECT = re.compile(r'\{\s*"(?:name|type|parameters)"\s*:')
_LINE = re.compile(rf"^[ \t]*+({_OBJECT.pattern})", re.MULTILINE)
_NEXT = re.compile(r"[\s;,]*(?=\{)")
_OBSERVED = re.compile(r"<\|start_header_id\|>ipython<\|end_header_id\|>\n\n(.*?)<\|eot_id\|>", re.DOTALL)
_OPENING = f"{START}assistant{HEADED}\n\n"


class Llama3(Family):
    name = "llama3"
    marks = (START, HEADED, END)
    controls = (BEGIN, START, HEADED)
    ends = (END, HANDED)
    stops = ("<|end_of_text|>",)

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        messages = with_system(messages, _shown(tools)) if tools else messages
        return [glue(BEGIN), *self.answered(messages)]

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        pieces: list[Piece] = []
        for answer in answers:
            pieces += [glue(f"{START}ipython{HEADED}\n\n"), Piece("observation", answer.text), glue(END)]
        return [*pieces, *self.answered(told)]

    def answered(self, told: Sequence[Told]) -> list[Piece]:
        return [*(piece for role, text in told for piece in _told(role, text)), glue(_OPENING)]

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """Objects of `name` and `parameters` that begin a line, or stand after `<|python_tag|>`; several are divided by
        `;` or space. What else stands after the tag is a program. Other objects are words."""
        tag, at = text.find(PYTHON), 0
        while found := _LINE.search(text, at, tag if tag >= 0 else len(text)):
            calls, at = _calls(text, found.start(1), found.start(1))
            if calls:
                yield from calls
                return
        if tag >= at:
            begin = tag + len(PYTHON)
            calls = _calls(text, begin, tag)[0] if _OBJECT.match(text, begin) else []
            yield from calls or [FoundCall("python", {"code": text[begin:]}, tag)]

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        return joined(text, [";".join(_object(*call) for call in calls)] if calls else [])

    def observations_in(self, text: str) -> list[str]:
        return _OBSERVED.findall(text)


def _told(role: str, text: str) -> list[Piece]:
    return [glue(f"{START}{role}{HEADED}\n\n"), words(text.strip()), glue(END)]


def _calls(text: str, begin: int, char: int) -> tuple[list[FoundCall], int]:
    """Calls one after the other, the first of which belongs to a marker at `char`; and where what was read ends."""
    calls: list[FoundCall] = []
    while True:
        try:
            value, end = read_value(text, begin, None)
        except (ValueError, RecursionError):
            return [*calls, to_call(None, text[begin:].strip(), char)], len(text)
        about = value.get("function") if value.get("type") == "function" else None
        about = about if isinstance(about, dict) else value
        key = next((key for key in ("parameters", "arguments") if key in about), None)
        if key is None or not isinstance(about.get("name"), str):
            return calls, end
        calls.append(to_call(about, text[begin:end].strip(), char, key))
        following = _NEXT.match(text, end)
        if following is None:
            return calls, end
        begin = char = following.end()


def _object(name: str, arguments: object) -> str:
    return arguments if isinstance(arguments, str) else as_json({"name": name, "parameters": arguments})


def _shown(tools: Sequence[ToolSpec]) -> str:
    listed = "\n\n".join(json.dumps(tool.as_function(), indent=4, ensure_ascii=False) for tool in tools)
    return (
        "You may call the following functions. To call one, end your turn with a JSON object on a line of its own, in "
        'the format {"name": function name, "parameters": dictionary of argument name and its value}; do not use '
        f"variables.\n\n{listed}"
    )


FAMILY = Llama3()
