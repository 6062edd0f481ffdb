"""Programs that somebody else wrote: as trees, and by what line a failure of theirs is known."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Sequence
from typing import Any

FILENAME = "<program>"

# Python warns of what looks odd to it (`1if x else y`, "\d") while it parses: no business of whoever trains a model.
warnings.filterwarnings("ignore", module=FILENAME)


def parsed(code: str) -> ast.Module | None:
    """The program's tree; None where it is no Python of this version, or nested too deeply for its parser."""
    try:
        return ast.parse(code, FILENAME)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes, lone surrogates
        return None


def error_line(lines: Sequence[str], error_type: str | None) -> str | None:
    """The last line that names this type of error, `NameError: name 'x' is not defined`; None where there is none. Its
    message may go on for further lines."""
    named = (line for line in reversed(lines) if line.partition(":")[0].rpartition(".")[2] == error_type)
    return next(named, None)


def literal(text: str) -> list[Any] | dict[str, Any] | None:
    """The list or object that a text is as Python writes it, where JSON has the like (`['a', 'b']`); None for anything
    else, `['a' 'b']` too, which to Python is a list of one."""
    try:
        value = ast.literal_eval(ast.parse(text.strip(), FILENAME, mode="eval"))
        same = "".join(repr(value).split()) == "".join(text.split()) and json.loads(json.dumps(value)) == value
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value if same and isinstance(value, list | dict) else None
