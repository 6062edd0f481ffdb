"""Code that runs without failing because it does nothing."""

from __future__ import annotations

import ast
import re

from retcon.core.programs import parsed
from retcon.core.types import ToolCall
from retcon.purify.tools import has_program

_ACTS = re.compile(r"[A-Za-z_]\w*(?: = |\()")
"""How a program begins that binds or calls something."""


def does_nothing(code: str) -> bool:
    """Whether `code` is empty, or nothing but comments, `pass` and bare constants (docstrings, `...`).

    Code that does not parse is not judged here: False.
    """
    tree = None if _ACTS.match(code) else parsed(code)
    return tree is not None and all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in tree.body
    )


def is_noop(call: ToolCall) -> bool:
    """Whether a call runs code that does nothing; a call that carries no code is not judged: False."""
    return has_program(call) and does_nothing(call.code)


def is_program(call: ToolCall) -> bool:
    """Whether a call carries a program of Python's."""
    return has_program(call) and call.language != "shell"
