"""Reasoning between markers, and the calls outside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from retcon.chat.types import FoundCall

THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|START_THINKING|>", "<|END_THINKING|>"))
"""Markers of reasoning, besides those that a template itself shows."""


def calls_outside_thoughts(
    text: str, calls: Iterable[tuple[FoundCall, int]], thoughts: Sequence[tuple[str, str]], *, opened: bool
) -> Iterator[FoundCall]:
    """Filter the calls outside thoughts, closed or not.

    calls: each with its end; markers within a whole one are part of its program. thoughts: openings and closings.
    opened: whether the prompt opens the first kind of thought. A closing without an opening ends a thought that began
    in the prompt.
    """
    kinds = dict(thoughts)
    markers = iter(re.finditer("|".join(map(re.escape, sorted({*kinds, *kinds.values()}, key=len)[::-1])), text))
    found: list[FoundCall] = []
    closing, thought_before = (thoughts[0][1] if opened else ""), opened
    marker = next(markers, None)

    def read_markers(end: int) -> None:
        nonlocal closing, thought_before, marker
        while marker is not None and marker.start() < end:
            if marker[0] == closing:
                closing = ""
            elif not closing and marker[0] in kinds:
                closing, thought_before = kinds[marker[0]], True
            elif not closing and not thought_before:
                thought_before = True
                found.clear()
            marker = next(markers, None)

    for call, end in calls:
        read_markers(call.char)
        if not closing:
            found.append(call)
        if not isinstance(call.arguments, str):
            while marker is not None and marker.start() < end:
                marker = next(markers, None)
    read_markers(len(text))
    return iter(found)


def strip_empty_thought(turn: str, thoughts: Sequence[tuple[str, str]]) -> str:
    """Strip an empty thought and space from a turn's beginning."""
    for opening, closing in thoughts:
        if empty := re.match(rf"\s*(?:{re.escape(opening)}\s*)?{re.escape(closing)}\s*", turn):
            return turn[empty.end() :]
    return turn


def strip_opened_thought(prompt: str, thoughts: Sequence[tuple[str, str]]) -> str:
    """Strip an opened or empty thought from a prompt's end."""
    for opening, closing in thoughts:
        if (at := re.search(rf"(?:{re.escape(opening)}\s*)?(?:{re.escape(closing)}\s*)?\Z", prompt)) and at[0]:
            return prompt[: at.start()]
    return prompt
