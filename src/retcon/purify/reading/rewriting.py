"""Programs that stand anew in what repeats them, however they are written there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable


def rewritten(value: object, old: str, new: str) -> object:
    """A JSON value in which a text stands anew wherever it stands: plain, or as JSON within a string."""
    if isinstance(value, str):
        return rewritten_text(value, old, new)
    if isinstance(value, list):
        return [rewritten(item, old, new) for item in value]
    if isinstance(value, dict):
        return {key: rewritten(item, old, new) for key, item in value.items()}
    return value


def rewritten_text(text: str, old: str, new: str) -> str:
    """The same of a text."""
    for written in _WRITTEN:
        if (before := written(old)) in text:
            return text.replace(before, written(new))
    if "\\" not in text:
        return text
    # JSON may write any character as an escape: its strings are compared as what they say.
    for start in dict.fromkeys((0, max(text.find("{"), 0))):
        anew = _LITERAL.sub(lambda found: _rewritten_literal(found[0], old, new), text[start:])
        if anew != text[start:]:
            return text[:start] + anew
    return text


def _rewritten_literal(literal: str, old: str, new: str) -> str:
    """The same of a string of JSON; itself where it says something else."""
    if "\\" not in literal:
        return literal
    try:
        value = json.loads(literal, strict=False)
    except ValueError:
        return literal
    anew = rewritten_text(value, old, new)
    return literal if anew == value else json.dumps(anew, ensure_ascii=literal.isascii())


_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _ascii(text: str) -> str:
    return json.dumps(text)[1:-1]


_WRITTEN: tuple[Callable[[str], str], ...] = (
    str, _escaped, _ascii, lambda text: _escaped(_escaped(text)), lambda text: _ascii(_ascii(text)),
)  # fmt: skip
"""How a program stands in a text: as it is, as JSON, and as JSON within JSON."""
