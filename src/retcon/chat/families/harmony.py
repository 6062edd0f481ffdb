"""gpt-oss: messages on channels; calls go `to=functions.NAME` on `commentary`, programs to `python` on `analysis`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from retcon.chat.family import Family, Written
from retcon.chat.jsons import as_json, read_value
from retcon.chat.template import DATE
from retcon.chat.types import Answer, FoundCall, Piece, Told, glue, words
from retcon.core.types import ToolSpec

_TYPES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def as_typescript(tools: Sequence[ToolSpec]) -> str:
    """The types of the tools, a blank line after each."""
    return "".join(
        f"{_comment(tool.description)}type {tool.name} = {_function(tool.parameters)};\n\n" for tool in tools
    )


def _function(parameters: Mapping[str, Any]) -> str:
    if not parameters.get("properties"):
        return "() => any"
    return f"(_: {{\n{_fields(parameters)}}}) => any"


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    lines = ""
    for name, about in schema["properties"].items():
        field = about if isinstance(about, Mapping) else {}
        default = f", // default: {json.dumps(field['default'])}" if "default" in field else ","
        optional = "" if name in required else "?"
        lines += f"{_comment(field.get('description'))}{name}{optional}: {_type(field)}{default}\n"
    return lines


def _type(schema: Any) -> str:
    """schema: true and false are schemas, too, and before 2020 a list was one for each item."""
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return " | ".join(_type(one) for one in schema[several])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_TYPES.get(one, "any") for one in kind)
    if kind == "array":
        inner = _type(schema.get("items", {}))
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if kind == "object":
        return f"{{\n{_fields(schema)}}}" if schema.get("properties") else "object"
    return _TYPES.get(str(kind), "any")


def _comment(text: object) -> str:
    return "".join(f"// {line}\n" for line in str(text).splitlines()) if text else ""


START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL, RETURN = (
    "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"
)  # fmt: skip
_FUNCTIONS = "functions."
_OPENING = f"{START}assistant"
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_PEOPLE = ("user", "assistant", "all")
"""Recipients that are no tools."""
_ENDED = re.compile(r"<\|(end|call|return|start)\|>")
_CLOSING = re.compile(rf"\s*(?:{_ENDED.pattern}|\Z)")
_FINAL = re.compile(r"<\|channel\|>final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>(.*?)"
                    rf"(?:{_ENDED.pattern}|\Z)", re.DOTALL)  # fmt: skip
_OBSERVED = re.compile(r"<\|start\|>(?:functions\.[\w.-]+|python) to=assistant[^<]*<\|channel\|>\w+<\|message\|>"
                       r"(.*?)<\|end\|>", re.DOTALL)  # fmt: skip


class Harmony(Family):
    """A turn is all that the model writes up to `<|call|>` or `<|return|>`: reasoning and a call are two messages."""

    name = "harmony"
    marks = (START, MESSAGE, CHANNEL)
    controls = (START, END, MESSAGE, CHANNEL)
    ends = (CALL, RETURN)
    past_ends = (END,)
    closes = (END,)
    labels_calls = True
    parallel = False
    writes_calls = False
    calls_are_text = False

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        about = [_instructing(text) for role, text in messages if role == "system"] + ([_shown(tools)] if tools else [])
        pieces = [glue(f"{START}system{MESSAGE}{_system(tools)}{END}")]
        if about:
            pieces += _developer("\n\n".join(about))
        return [*pieces, *self.answered([told for told in messages if told[0] != "system"])]

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        pieces: list[Piece] = []
        for answer in answers:
            sender = answer.label or _FUNCTIONS + answer.name
            channel = "commentary" if sender.startswith(_FUNCTIONS) else "analysis"
            pieces += [
                glue(f"{START}{sender} to=assistant{CHANNEL}{channel}{MESSAGE}"),
                Piece("observation", answer.text),
                glue(END),
            ]
        return [*pieces, *self.answered(told)]

    def answered(self, told: Sequence[Told], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        pieces: list[Piece] = []
        for role, text in told:
            if role == "assistant":
                pieces += [glue(f"{_OPENING}{CHANNEL}final{MESSAGE}"), words(text), glue(END)]
            else:
                pieces += _developer(_instructing(text)) if role == "system" else _asked(text)
        return [*pieces, glue(_OPENING)]

    def thought(self, text: str, *, last: bool) -> list[Piece]:
        return [glue(f"{CHANNEL}analysis{MESSAGE}"), words(text), glue(f"{END}{_OPENING}")] if text else []

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        at = 0
        while (message := text.find(MESSAGE, at)) >= 0:
            header, begin = text[at:message], message + len(MESSAGE)
            recipient = _RECIPIENT.search(header)
            if recipient is None:
                end, _ = _ended(text, begin)
            else:
                opening = header.rfind(START)
                call, end = _call(text, begin, recipient[1], at + max(0, opening))
                if call is not None:
                    yield call
            at = end

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        if not calls:
            return [glue(f"{CHANNEL}final{MESSAGE}"), words(text)]
        pieces = self.thought(text, last=False)
        for n, (name, arguments) in enumerate(calls):
            again = f"{CALL}{_OPENING}" if n else ""
            given = arguments if isinstance(arguments, str) else as_json(arguments)
            to = f"{again}{CHANNEL}commentary to={_FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}"
            pieces += [glue(to), words(given)]
        return pieces

    def end_of(self, calls: Sequence[Written]) -> str:
        return CALL if calls else RETURN

    def shown(self, text: str) -> str:
        """The messages on `final`; all of a text that has no messages in it."""
        if MESSAGE not in text and CHANNEL not in text:
            return text
        return "\n".join(found[1] for found in _FINAL.finditer(text))

    def observations_in(self, text: str) -> list[str]:
        return _OBSERVED.findall(text)


def _instructing(text: str) -> str:
    return f"# Instructions\n\n{text}"


def _developer(text: str) -> list[Piece]:
    return [glue(f"{START}developer{MESSAGE}"), words(text), glue(END)]


def _asked(text: str) -> list[Piece]:
    return [glue(f"{START}user{MESSAGE}"), words(text), glue(END)]


def _call(text: str, begin: int, recipient: str, char: int) -> tuple[FoundCall | None, int]:
    """The call that a message to `recipient` makes, None where it makes none, and where the message ends."""
    name = recipient.removeprefix(_FUNCTIONS)
    if recipient != "python":
        try:
            value, end = read_value(text, begin, MESSAGE)
            closing = _CLOSING.match(text, end)
            if isinstance(value, dict) and closing is not None and _calls(recipient, closing[1]):
                return FoundCall(name, value, char, recipient), end
        except (ValueError, RecursionError):
            pass
    end, mark = _ended(text, begin)
    if recipient == "python":
        return FoundCall(name, {"code": text[begin:end]}, char, recipient), end
    if _calls(recipient, mark):
        return FoundCall(name, text[begin:end].strip(), char, recipient), end
    return None, end


def _ended(text: str, begin: int) -> tuple[int, str | None]:
    """Where the message whose words begin there ends, and with which mark."""
    found = _ENDED.search(text, begin)
    return (len(text), None) if found is None else (found.start(), found[1])


def _calls(recipient: str, mark: str | None) -> bool:
    """Whether a message that ends with a mark makes a call: to a function always, to any other tool where the turn ends
    with it. mark: None at the end of a text, which lacks the turn's own."""
    return recipient.startswith(_FUNCTIONS) or (mark in (None, "call") and recipient not in _PEOPLE)


def _system(tools: Sequence[ToolSpec]) -> str:
    lines = (
        "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
        f"Current date: {DATE.isoformat()}\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. "
        "Channel must be included for every message."
    )
    return f"{lines}\nCalls to these tools must go to the commentary channel: 'functions'." if tools else lines


def _shown(tools: Sequence[ToolSpec]) -> str:
    return f"# Tools\n\n## functions\n\nnamespace functions {{\n\n{as_typescript(tools)}}} // namespace functions"


FAMILY = Harmony()
