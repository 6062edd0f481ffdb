"""What a text shows rather than says: programs, and answers. Nothing is cut out of either."""

from __future__ import annotations

import re
from textwrap import dedent

from retcon.purify.reading.trees import parse

_FENCED = re.compile(r"```[^\n`]*\n.*?(?:```|\Z)", re.DOTALL)
_SOLUTION = re.compile(r"<solution>(.*?)(?:</solution>|\Z)", re.DOTALL)


def programs(text: str) -> list[tuple[int, int]]:
    """The stretches [start, end) of a text that are programs, in order: what is fenced, and solutions that Python can
    read."""
    found = [found.span() for found in _FENCED.finditer(text)] if "```" in text else []
    for start, end in _solutions(text):
        apart = all(end <= other or start >= stop for other, stop in found)
        if apart and parse(dedent(text[start:end]).strip()) is not None:
            found.append((start, end))
    return sorted(found)


def shown(text: str) -> list[tuple[int, int]]:
    """The stretches [start, end) of a text that are programs or solutions."""
    return [*programs(text), *_solutions(text)]


def _solutions(text: str) -> list[tuple[int, int]]:
    return [found.span(1) for found in _SOLUTION.finditer(text)] if "<solution>" in text else []
