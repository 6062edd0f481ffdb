r"""Reading an answer out of a reply: the last `\boxed{…}`, braces matched."""

from __future__ import annotations

BOX = r"\boxed{"


def boxed(text: str) -> str | None:
    r"""The content of the last complete `\boxed{…}` of `text`, None where there is none."""
    start = text.rfind(BOX)
    while start >= 0:
        content = _until_closed(text, start + len(BOX))
        if content is not None:
            return content.strip()
        start = text.rfind(BOX, 0, start)
    return None


def _until_closed(text: str, start: int) -> str | None:
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None
