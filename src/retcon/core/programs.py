"""Parsing of Python programs, literals and error messages of others."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Sequence
from typing import Any

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
