"""JSON values within a text that a model wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_ESCAPE = len(r'"\u001f')
_SPACE = re.compile(r"\s*")


def as_json(value: Mapping[str, object]) -> str:
    """On one line, letters as they are."""
    return json.dumps(dict(value), ensure_ascii=False)


def read_value(text: str, start: int, mark: str | None) -> tuple[Any, int]:
    """The JSON value at `start`, after space, and where it ends.

    mark: what may stand within the value in a string alone, such as the next call's opening. The reader gets no more
    than it needs, as its errors count the lines of all that it was given: it is given what goes on beyond a mark only
    where a string does, so that texts full of marks take time in proportion to their length. None where the text is
    not read on after an error. Raises ValueError, RecursionError; also for what no JSON file can hold again (NaN,
    1e999, lone surrogates).
    """
    begin = space_end(text, start)
    if mark is None:
        value, end = _DECODER.raw_decode(text, begin)
        _check(text[begin:end], value)
        return value, end
    limit = begin
    while True:
        limit = text.find(mark, begin + 2 * (limit - begin))
        limit = len(text) if limit < 0 else limit
        try:
            value, length = _DECODER.raw_decode(text[begin:limit])
            break
        except json.JSONDecodeError as error:
            escape_was_cut = error.msg.startswith("Invalid \\") and error.pos + _ESCAPE >= limit - begin
            if limit == len(text) or not (escape_was_cut or error.msg.startswith("Unterminated string")):
                raise
    _check(text[begin : begin + length], value)
    return value, begin + length


def read_all(text: str) -> Any:
    """The JSON value that `text` is, None where it is none."""
    try:
        value = _DECODER.decode(text)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return value


def read_arguments(value: object) -> dict[str, object] | None:
    """Arguments, which may be a string that itself holds the object; None where they are no object."""
    if isinstance(value, str):
        value = read_all(value)
    return value if isinstance(value, dict) else None


def space_end(text: str, start: int) -> int:
    """Where the space at `start` ends."""
    space = _SPACE.match(text, start)
    return space.end() if space else start


def _check(literal: str, value: object) -> None:
    """Raises UnicodeEncodeError, a ValueError, for lone surrogates, plain or written as escapes."""
    literal.encode("utf-8")
    json.dumps(value, ensure_ascii=False).encode("utf-8")


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise ValueError(f"{literal} is not a finite number")
    return number


# Python's reader takes NaN and 1e999, which no JSON file can hold again.
_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)
