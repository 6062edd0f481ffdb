"""JSON values within a model's text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_SPACE = re.compile(r"\s*")


def as_json(value: Mapping[str, object]) -> str:
    """Dump on one line, without ASCII escapes."""
    return json.dumps(dict(value), ensure_ascii=False)


def read_value(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON value at `start`, after space; return it and its end.

    Its errors count the lines of the whole text: a reader of many values stops after some errors.
    Raises ValueError, RecursionError; also for what no JSON file can hold again (NaN, 1e999, lone surrogates).
    """
    begin = space_end(text, start)
    value, end = _DECODER.raw_decode(text, begin)
    text[begin:end].encode("utf-8")  # raises for lone surrogates, plain or written as escapes
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value, end


def read_all(text: str) -> Any:
    """Parse `text` as one JSON value, else return None."""
    try:
        value = _DECODER.decode(text)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return None
    return value


def read_arguments(value: object) -> dict[str, object] | None:
    """Return arguments, also from a string of JSON; None if not an object."""
    if isinstance(value, str):
        value = read_all(value)
    return value if isinstance(value, dict) else None


def space_end(text: str, start: int) -> int:
    """Return where the space at `start` ends."""
    space = _SPACE.match(text, start)
    return space.end() if space else start


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise ValueError(f"{literal} is not a finite number")
    return number


# Python's reader takes NaN and 1e999, which no JSON file can hold again.
_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)
