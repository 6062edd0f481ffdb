"""Tool calls as JSON between `<tool_call>` tags, as Hermes and Qwen write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

from retcon.chat.types import FoundCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_DEFAULT_NAME = "python"
_CLOSING = re.compile(r"\s*" + CLOSE)
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')


def find_calls(text: str) -> Iterator[FoundCall]:
    """Every `<tool_call>` with an object of `name` and `arguments` in it.

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
        yield _to_call(obj, text[start:inner_end].strip(), at)
        at = text.find(OPEN, end)


def render_call(name: str, arguments: Mapping[str, object]) -> str:
    """The block that `find_calls` reads back, as Qwen3's own template writes it."""
    return f"{OPEN}\n{as_json({'name': name, 'arguments': arguments})}\n{CLOSE}"


def as_json(value: Mapping[str, object]) -> str:
    """On one line, letters as they are."""
    return json.dumps(dict(value), ensure_ascii=False)


def _to_call(obj: object, raw: str, char: int) -> FoundCall:
    if isinstance(obj, dict):
        name, arguments = obj.get("name"), obj.get("arguments")
        if isinstance(arguments, str):
            arguments = _read_all(arguments)
        if isinstance(name, str) and name and isinstance(arguments, dict):
            return FoundCall(name, arguments, char)
        if isinstance(name, str) and name:
            return FoundCall(name, raw, char)
    found = _NAME.search(raw)
    return FoundCall(found[1] if found else _DEFAULT_NAME, raw, char)


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise ValueError(f"{literal} is no finite number")
    return number


# Python's reader takes NaN and 1e999, which no JSON file can hold again.
_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def _read_closed(text: str, start: int) -> tuple[object, int, int] | None:
    """The JSON value at `start` that is followed by the closing tag, where it ends, and where the tag ends."""
    begin = _space_end(text, start)
    try:
        obj, length = _decode_at(text, begin)
        end = begin + length
        text[begin:end].encode("utf-8")
        json.dumps(obj, ensure_ascii=False).encode("utf-8")  # a lone surrogate written as an escape
    except (ValueError, RecursionError):
        return None
    closing = _CLOSING.match(text, end)
    return (obj, end, closing.end()) if closing else None


def _decode_at(text: str, begin: int) -> tuple[object, int]:
    """The JSON value there and its length. Raises ValueError, RecursionError.

    The reader gets no more than it needs, as its errors count the lines of all that it was given: an opening tag can
    stand inside a value in a string alone, so that it is given what goes on beyond one only where a string does.
    """
    limit = begin
    while True:
        limit = text.find(OPEN, begin + 2 * (limit - begin))
        limit = len(text) if limit < 0 else limit
        try:
            return _DECODER.raw_decode(text[begin:limit])
        except json.JSONDecodeError as error:
            if limit == len(text) or not error.msg.startswith("Unterminated string"):
                raise


def _space_end(text: str, start: int) -> int:
    space = _SPACE.match(text, start)
    return space.end() if space else start


def _read_all(text: str) -> object:
    try:
        obj = _DECODER.decode(text)
        json.dumps(obj, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return obj
