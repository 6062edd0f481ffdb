"""Tool calls as JSON between `<tool_call>` tags, as Hermes and Qwen write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from retcon.chat.jsons import as_json, read_arguments, read_value
from retcon.chat.types import FoundCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TURNS = """{%- for message in told %}
{%- if message.role == 'tool' %}
{{- '\\n' if not loop.first and loop.previtem.role == 'tool' else '<|im_start|>user\\n' }}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Jinja: the messages in `told` as turns of ChatML, calls and observations between their tags."""
_DEFAULT_NAME = "python"
_CLOSING = re.compile(r"\s*" + CLOSE)
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')


def find_calls(text: str) -> Iterator[FoundCall]:
    """Every call in a text; see `locate_calls`."""
    return (call for call, _ in locate_calls(text))


def locate_calls(text: str) -> Iterator[tuple[FoundCall, int]]:
    """Every `<tool_call>` with an object of `name` and `arguments` in it, and where it ends.

    Tags inside the JSON (in a program's strings) are part of it. Arguments may be a string that itself holds the
    object. Malformed, with the raw text between the tags: JSON that cannot be read, no name, arguments that are no
    object, no closing tag. An opening tag that is followed by another one before it is closed is prose.
    """
    at, close = text.find(OPEN), 0
    while at >= 0:
        start = at + len(OPEN)
        whole = _read_closed(text, start)
        if whole is not None:
            obj, inner_end, end = whole
        else:
            if 0 <= close < start:  # not looked for anew where it is known: there may be as many openings as fit
                close = text.find(CLOSE, start)
            inner_end = close
            reopened = text.find(OPEN, start)
            if reopened >= 0 and (inner_end < 0 or reopened < inner_end):
                at = reopened
                continue
            inner_end, end = (inner_end, inner_end + len(CLOSE)) if inner_end >= 0 else (len(text), len(text))
            obj = None
        yield to_call(obj, text[start:inner_end].strip(), at), end
        at = text.find(OPEN, end)


def render_call(name: str, arguments: Mapping[str, object]) -> str:
    """The block that `find_calls` reads back, as Qwen3's own template writes it."""
    return f"{OPEN}\n{as_json({'name': name, 'arguments': arguments})}\n{CLOSE}"


def to_call(obj: object, raw: str, char: int, key: str = "arguments") -> FoundCall:
    """The call that an object of `name` and, under `key`, arguments says; malformed, with `raw`, where it says none."""
    if isinstance(obj, dict):
        name, arguments = obj.get("name"), read_arguments(obj.get(key))
        label = obj["id"] if isinstance(obj.get("id"), str) else ""
        if isinstance(name, str) and name:
            return FoundCall(name, raw if arguments is None else arguments, char, label)
    found = _NAME.search(raw)
    return FoundCall(found[1] if found else _DEFAULT_NAME, raw, char)


def _read_closed(text: str, start: int) -> tuple[object, int, int] | None:
    """The JSON value at `start` that is followed by the closing tag, where it ends, and where the tag ends."""
    try:
        obj, end = read_value(text, start, OPEN)
    except (ValueError, RecursionError):
        return None
    closing = _CLOSING.match(text, end)
    return (obj, end, closing.end()) if closing else None
