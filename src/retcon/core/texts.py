"""Helpers for strings: URLs, counts with nouns, end-of-turn marks, Python programs and literals."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

_TURN_END = re.compile(r"(?:<\|[^<>|]{1,40}\|>|<｜[^<>｜]{1,40}｜>|<end_of_turn>|<eos>|</s>)\s*\Z")


def is_url(text: str) -> bool:
    """Return whether the text is an HTTP URL."""
    return text.startswith(("http://", "https://"))


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: `1 worker`, `2 workers`, `1,024 workers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def strip_turn_end(text: str) -> str:
    """Remove the template's end-of-turn mark (`<|im_end|>`) from a turn's text."""
    return _TURN_END.sub("", text)


FILENAME = "<program>"

# Python warns of odd code (`1if x else y`, "\d") while it parses; such warnings do not concern the user.
warnings.filterwarnings("ignore", module=FILENAME)


def parse_program(code: str) -> ast.Module | None:
    """Return the program's tree; None if it is invalid or nested too deeply."""
    try:
        return ast.parse(code, FILENAME)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes, lone surrogates
        return None


def error_line(lines: Sequence[str], error_type: str | None) -> str | None:
    """Return the last line with this error type, `NameError: name 'x' is not defined`, or None. Its message may go on
    for further lines."""
    named = (line for line in reversed(lines) if line.partition(":")[0].rpartition(".")[2] == error_type)
    return next(named, None)


def parse_literal(text: str) -> list[Any] | dict[str, Any] | None:
    """Parse a list or dict in Python's notation (`['a', 'b']`); None for anything else, for one that JSON cannot hold,
    and for `['a' 'b']`, a list of one to Python."""
    try:
        value = ast.literal_eval(ast.parse(text.strip(), FILENAME, mode="eval"))
        same = "".join(repr(value).split()) == "".join(text.split()) and json.loads(json.dumps(value)) == value
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value if same and isinstance(value, list | dict) else None
