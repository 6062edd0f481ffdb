r"""Reading an answer out of a reply: the last `\boxed{…}`, braces matched."""

from __future__ import annotations

import re

BOX = r"\boxed{"
_BRACE = re.compile(r"[{}]")


def boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{…}` of `text`, None where there is none. In one pass: a model may write
    thousands that are never closed."""
    begin, end = 0, 0
    opened: list[int] = []
    for brace in _BRACE.finditer(text, max(text.find(BOX), 0)):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and (start := opened.pop()) > begin and text.endswith(BOX, 0, start):
            begin, end = start, brace.start()
    return text[begin:end].strip() if begin else None
