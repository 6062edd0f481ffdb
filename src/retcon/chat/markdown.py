"""Tool calls as fenced blocks of Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from retcon.chat.types import FoundCall

LANGUAGES = "python3?|py"


def find_calls(text: str, languages: str = LANGUAGES) -> Iterator[FoundCall]:
    """Every ```` ```python ```` block (also `py`, `python3`, in any case) is a call of `python` with its `code`.

    The opening fence may stand anywhere and ends its line. The block ends at the first line that has nothing but at
    least as many backticks; backticks elsewhere in a line are code. Other languages are no calls. An opening fence
    that is followed by another one before it is closed is prose. A block that is never closed is a malformed call.
    languages: others that are calls, as a regular expression.
    """
    openings = list(_opening(languages).finditer(text))
    for n, opening in enumerate(openings):
        start = opening.end()
        limit = openings[n + 1].start() if n + 1 < len(openings) else len(text)
        # The closing line may follow the opening one at once, hence from the line end before `start`; and it is looked
        # for up to the next opening alone, as each search to the end would make many openings take long. `\Z` is there
        # too, so that what stands right before the next opening has to be told apart.
        ticks = len(opening["fence"])
        close = re.compile(rf"\n {{0,3}}`{{{ticks},}}+[ \t\r]*+(?=\n|\Z)").search(text, start - 1, limit)
        if close is not None and not close.end() == limit < len(text):
            yield FoundCall("python", {"code": text[start : max(start, close.start())]}, opening.start())
        elif n + 1 == len(openings):
            yield FoundCall("python", text[start:], opening.start())


def render_call(code: str) -> str:
    """The block that `find_calls` reads back."""
    return f"```python\n{code}\n```"


@cache
def _opening(languages: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!`)(?P<fence>`{{3,}})(?:{languages})[ \t]*\r?(?:\n|\Z)", re.IGNORECASE)
