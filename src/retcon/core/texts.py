"""What texts say, and how they say it."""

from __future__ import annotations

import re

_TURN_END = re.compile(r"(?:<\|[^<>|]{1,40}\|>|<｜[^<>｜]{1,40}｜>|<end_of_turn>|<eos>|</s>)\s*\Z")


def is_url(text: str) -> bool:
    """Whether it names a server that speaks HTTP."""
    return text.startswith(("http://", "https://"))


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `1,024 workers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def without_turn_end(text: str) -> str:
    """What a model said in a turn, without the mark by which its template ends one (`<|im_end|>`)."""
    return _TURN_END.sub("", text)
