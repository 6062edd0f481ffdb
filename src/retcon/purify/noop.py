"""Code that runs without failing because it does nothing, or less than was meant."""

from __future__ import annotations

import ast
import re
from typing import Literal

from retcon.core.types import ToolCall, Turn
from retcon.purify.names import only_constants, runs_nothing

_TELLS = re.compile(
    r"\W*(?:an? )?(?:\w+ )?(?:error|exception|failed|failure)\b(?! (?:of|in|term|rate|is|=))[^\n]*", re.IGNORECASE
)


def does_nothing(code: str) -> bool:
    """Whether `code` is empty, or nothing but comments, `pass` and bare constants (docstrings, `...`).

    Code that does not parse is not judged here: False.
    """
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # null bytes; what is nested too deep for the parser
        return False
    return all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in body
    )


def is_noop(call: ToolCall) -> bool:
    """Whether a call runs code that does nothing; a call that carries no code is not judged: False."""
    return not call.malformed and "code" in call.arguments and does_nothing(call.code)


def is_program(call: ToolCall) -> bool:
    """Whether a call carries a program of Python's."""
    return not call.malformed and "code" in call.arguments and call.extra.get("language") != "shell"


def weak(failure: Turn, fix: Turn) -> tuple[Literal["constant", "unexecuted", "told"], str] | None:
    """Why a fix that works does less than was meant: it computes nothing, runs nothing, or tells of an error itself."""
    pairs = [(f, g) for f in failure.calls for g in fix.calls if is_program(f) and is_program(g)]
    lost = next((name for f, g in pairs for name in (only_constants(f.code, g.code),) if name is not None), None)
    if lost is not None:
        return "constant", lost
    if pairs and all(runs_nothing(g.code) and not runs_nothing(f.code) for f, g in pairs):
        return "unexecuted", ""
    for observation in fix.observations:
        if (found := _TELLS.match(observation.text)) is not None:
            return "told", found[0].strip()[:80]
    return None
