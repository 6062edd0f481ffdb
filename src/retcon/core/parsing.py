"""Programs that somebody else wrote, as trees."""

from __future__ import annotations

import ast
import warnings

FILENAME = "<program>"

# Python warns of what looks odd to it (`1if x else y`, "\d") while it parses: no business of whoever trains a model.
warnings.filterwarnings("ignore", module=FILENAME)


def parsed(code: str) -> ast.Module | None:
    """The program's tree; None where it is no Python of this version, or nested too deeply for its parser."""
    try:
        return ast.parse(code, FILENAME)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: null bytes, lone surrogates
        return None
