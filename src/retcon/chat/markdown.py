"""Tool calls as fenced blocks of Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from retcon.chat.types import FoundCall

LANGUAGES = "python3?|py"
_INDENT = re.compile(r"[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+")


def find_calls(text: str, languages: str = LANGUAGES, *, indented: bool = False) -> Iterator[FoundCall]:
    """Find the calls in a text, by `find_blocks`."""
    return (call for call, _ in find_blocks(text, languages, indented=indented))


def find_blocks(text: str, languages: str = LANGUAGES, *, indented: bool = False) -> Iterator[tuple[FoundCall, int]]:
    """Find ```` ```python ```` blocks, as calls of `python` with their ends.

    The opening fence may stand anywhere and ends its line. The block ends at the first line of nothing but at least as
    many backticks; backticks elsewhere are code. An opening fence followed by another one before it is closed is prose.
    A block that is never closed is a malformed call, up to the end of the text. languages: those that are calls, as a
    regular expression, in any case. indented: a block that is indented as a whole, as in an item of a list, is read
    without that indentation. A call is not: it may replace one elsewhere.
    """
    openings = list(_opening(languages).finditer(text))
    for n, opening in enumerate(openings):
        start, limit = opening.end(), openings[n + 1].start() if n + 1 < len(openings) else len(text)
        # The closing line may follow the opening one at once, hence from the line end before the code; and it is looked
        # for up to the next opening alone, to stay linear. `\Z` matches there too, and is ruled out below.
        column = _column(text, opening) if indented else 0
        close = _closing(len(opening["fence"]), column).search(text, start - 1, limit)
        if close is not None and not close.end() == limit < len(text):
            whole = text[start : close.end()]
            code = _dedented(whole, column) if indented else text[start : max(start, close.start())]
            yield FoundCall("python", {"code": code}, opening.start()), close.end()
        elif n + 1 == len(openings):
            yield FoundCall("python", text[start:], opening.start()), len(text)


def render_call(code: str) -> str:
    """Render a block that `find_calls` reads back."""
    return f"```python\n{code}\n```"


def _column(text: str, opening: re.Match[str]) -> int:
    """Return the indentation of the line in characters, list marks among them."""
    line = text.rfind("\n", 0, opening.start()) + 1
    indent = _INDENT.match(text, line)
    return indent.end() - line if indent is not None else 0


def _dedented(block: str, most: int) -> str:
    """Return the lines before the last, without the indentation that all lines share."""
    *code, closing = block.split("\n")
    indents = {line[: -len(line.lstrip(" \t"))][:most] for line in (*code, closing) if line.strip()}
    indent = min(indents, key=len)
    length = len(indent) if all(one.startswith(indent) for one in indents) else 0
    return "\n".join(line[length:] for line in code)


@cache
def _opening(languages: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!`)(?P<fence>`{{3,}})(?:{languages})[ \t]*\r?(?:\n|\Z)", re.IGNORECASE)


def _closing(ticks: int, column: int) -> re.Pattern[str]:
    indent = rf"[ \t]{{0,{column + 3}}}" if column else " {0,3}"
    return re.compile(rf"\n{indent}`{{{ticks},}}+[ \t\r]*+(?=\n|\Z)")
