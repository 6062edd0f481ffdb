"""Where the sentences of a text begin and end."""

from __future__ import annotations

import re
from dataclasses import dataclass

from retcon.purify.reading.shown import programs

_END = re.compile(r"[.!?:]+[\"')\]*`_]*(?=\s|\Z|<)|\n+|</?\w+>")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|vs|etc|eqs?|figs?|dr|mr|mrs|approx|cf|no|resp)\Z", re.IGNORECASE)
_ITEM = re.compile(
    r"(?:\n|;|\b(?:no\.|steps?|parts?|cases?|sections?|items?|phases?|options?))[*_#\s]*\(?\d{1,3}\Z", re.IGNORECASE
)
"""The number of a list's item: where a line or a sentence begins, or after what it counts."""
_NUMBER = re.compile(r"\s(\d{1,3})\Z")
_NEAR, _ITEM_CHARS = 24, 1000
"""How far back an abbreviation or a label is looked for, and the item before."""
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class Sentence:
    """[start, end) of a text. rule: why it refers to what is gone, None where it does not."""

    start: int
    end: int
    rule: str | None = None

    def within(self, other: Sentence) -> bool:
        return other.start <= self.start and self.end <= other.end


def sentences(text: str) -> list[Sentence]:
    """The sentences of a text, without the space and tags between; a line break ends one unless the next line goes on
    in small letters. Of a program that the text shows, the comments: its lines are no words."""
    found: list[Sentence] = []
    at = 0
    for start, stop in programs(text):
        _add_all(found, text, at, start)
        found += (Sentence(*comment.span()) for comment in _COMMENT.finditer(text, start, stop))
        at = stop
    _add_all(found, text, at, len(text))
    return found


def _add_all(found: list[Sentence], text: str, start: int, stop: int) -> None:
    for end in _END.finditer(text, start, stop):
        mark = end[0]
        if mark[0] == "." and _goes_on(text, start, end.start()):
            continue
        if mark[0] == "\n" and len(mark) == 1 and text[end.end() : end.end() + 1].islower():
            continue
        outside = mark[0] in "\n<"
        _add(found, text, start, end.start() if outside else end.end())
        start = end.end()
    _add(found, text, start, stop)


def _goes_on(text: str, start: int, dot: int) -> bool:
    """Whether a sentence that begins at `start` goes on after this dot: that of an abbreviation or of an item's number,
    as of `2.` where `1.` is in the sentence."""
    near = text[max(start, dot - _NEAR) : dot]
    if dot - start <= _NEAR:
        near = f"\n{near}"
    if _ABBREVIATION.search(near) or _ITEM.search(near):
        return True
    number = _NUMBER.search(near)
    return number is not None and text.find(f"{int(number[1]) - 1}. ", max(start, dot - _ITEM_CHARS), dot) >= 0


def _add(found: list[Sentence], text: str, start: int, end: int) -> None:
    inside = text[start:end]
    if stripped := inside.strip():
        at = start + inside.index(stripped[0])
        found.append(Sentence(at, at + len(stripped)))
