"""What texts say, and how they say it."""

from __future__ import annotations


def is_url(text: str) -> bool:
    """Whether it names a server that speaks HTTP."""
    return text.startswith(("http://", "https://"))


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `1,024 workers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
