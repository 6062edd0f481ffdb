"""Sim(c_t, c'): how alike two programs are, and whether they are alike enough."""

from __future__ import annotations

import math

from retcon.purify.matching.bounds import bounds


def similarity(a: str, b: str) -> float:
    """The Ratcliff-Obershelp ratio of two texts, in [0, 1]; 1 for two empty ones. Not symmetric: `a` is c_t, `b` is c'.

    `difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()` to the last bit. autojunk stays off: it would drop
    frequent characters from texts of 200 and more, so that long programs look less alike than they are.
    """
    if a == b:
        return 1.0
    matched = 0
    for matched, _ in bounds(a, b):  # noqa: B007
        pass
    return _ratio(matched, len(a) + len(b))


def at_least(a: str, b: str, gamma: float) -> bool:
    """Whether similarity(a, b) ≥ gamma, the same for every gamma; computed no further than decides it."""
    if a == b:
        return gamma <= 1
    if gamma <= 0:
        return True
    total = len(a) + len(b)
    if not _ratio(min(len(a), len(b)), total) >= gamma:
        return False
    needed = _needed(gamma, total)
    return next(lower >= needed for lower, upper in bounds(a, b) if lower >= needed or upper < needed)


def _ratio(matched: int, total: int) -> float:
    """difflib's own expression: another would round differently."""
    return 2.0 * matched / total


def _needed(gamma: float, total: int) -> int:
    """The fewest matched characters whose ratio is gamma or more."""
    needed = max(0, math.ceil(gamma * total / 2) - 1)
    while _ratio(needed, total) < gamma:
        needed += 1
    return needed
