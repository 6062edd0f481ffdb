"""Small helpers for strings: URLs, counts with nouns, end-of-turn marks."""

from __future__ import annotations

import re

_TURN_END = re.compile(r"(?:<\|[^<>|]{1,40}\|>|<｜[^<>｜]{1,40}｜>|<end_of_turn>|<eos>|</s>)\s*\Z")


def is_url(text: str) -> bool:
    """Return whether the text is an HTTP URL."""
    return text.startswith(("http://", "https://"))


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: `1 worker`, `2 workers`, `1,024 workers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def strip_turn_end(text: str) -> str:
    """Remove the template's end-of-turn mark (`<|im_end|>`) from a turn's text."""
    return _TURN_END.sub("", text)
