"""How many characters difflib matches in two texts, as bounds that close in on the number."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import cydifflib
from rapidfuzz.distance import LCSseq, Postfix, Prefix

from retcon.purify.matching.blocks import Block, Gap, common_blocks
from retcon.purify.matching.sweep import swept

SMALL = 300 * 300
"""Pairs of positions up to which comparing all of them costs less than looking for blocks."""

LARGE = 1000 * 1000
"""From here on comparing all positions is left to no text: of texts that repeat themselves it would take minutes."""

LONG, SHORT = 16, 8
"""Lengths of the common blocks that are looked for first, and at last."""


def bounds(a: str, b: str) -> Iterator[tuple[int, int]]:
    """Pairs (lower, upper) around M, the characters that difflib matches in a and b; never wider, equal at last.

    M is the sum that Ratcliff and Obershelp's matching makes: the longest common block (of several the one that begins
    first in a, then in b), and the same again in the gap before it and in the gap after it. So what is matched is a
    lower bound, and the longest common subsequences of the gaps, which no matching exceeds, make an upper one.
    """
    lower = max(Prefix.similarity(a, b), Postfix.similarity(a, b))  # the longest common block is no shorter
    yield lower, min(len(a), len(b))
    ends = 0
    for _ in range(2):  # what comes first in the one direction may leave a text of which the other end comes first
        for _ in range(2):
            length = _matched_first(a, b)
            ends += length
            a, b = a[: length - 1 if length else None : -1], b[: length - 1 if length else None : -1]
    upper = LCSseq.similarity(a, b)
    yield max(lower, ends), ends + upper
    for matched, most in _closer(a, b, upper, None):
        yield max(ends + matched, lower), ends + most


def _matched_first(a: str, b: str) -> int:
    """The length of the common prefix where it is plain that no other common block is as long, else 0.

    One that is as long, and not on the diagonal of the prefix, covers the prefix's middle, and has it at another place.
    """
    length = Prefix.similarity(a, b)
    margin = max(len(a), len(b)) - length
    if length <= margin:
        return 0
    middle = a[margin:length]
    return length if b.find(middle) == margin and b.find(middle, margin + 1) < 0 else 0


def _closer(a: str, b: str, upper: int, below: int | None) -> Iterator[tuple[int, int]]:
    """`bounds` where M ≤ upper is known, and that no common block has `below` characters (None: nothing is)."""
    if upper <= 1 or len(a) * len(b) <= SMALL:
        # a common character is always matched, so M = 0 or 1 where that is the most
        matched = exactly(a, b) if upper > 1 else upper
        yield matched, matched
        return
    k = LONG if below is None else below // 2
    if upper >= k >= SHORT:
        blocks, k = common_blocks(a, b, k)
        if below is None or k < below:
            yield from _divided(a, b, upper, blocks, k)
            return
    matched = 0
    if len(a) * len(b) <= LARGE:
        matched = exactly(a, b)
    else:
        for matched in swept(a, b, below or upper + 1):
            yield matched, upper
    yield matched, matched


def _divided(a: str, b: str, upper: int, blocks: list[Block], k: int) -> Iterator[tuple[int, int]]:
    """`bounds` from all maximal common blocks of k characters or more.

    The longest block of a gap is the longest of these when cut to the gap. Gaps do not influence each other, so the
    longest block of all gaps may be matched next: the first in the heap that no match cuts.
    """
    lower, matches = 0, 0
    gaps: list[Gap] = [(0, len(a), 0, len(b))]
    most = {gaps[0]: upper}
    heap = [(-length, i, j) for i, j, length in blocks]
    heapify(heap)
    while heap:
        minus, i, j = heappop(heap)
        length = -minus
        at = bisect_right(gaps, (i, len(a) + 1, 0, 0)) - 1  # the last gap that begins at i or before
        for index in range(max(at, 0), len(gaps)):
            a0, a1, b0, b1 = gaps[index]
            if a0 >= i + length:
                break
            skip = max(a0 - i, b0 - j, 0)
            rest = min(a1 - i, b1 - j, length) - skip
            if rest == length:
                around = ((a0, i, b0, j), (i + length, a1, j + length, b1))
                gaps[index : index + 1] = [gap for gap in around if gap[0] < gap[1] and gap[2] < gap[3]]
                lower += length
                matches += 1
                yield lower, upper
                if matches & (matches - 1) == 0:  # a power of two: subsequences cost more than matches
                    most = _most(a, b, gaps, most)
                    upper = lower + sum(most.values())
                    yield lower, upper
                break
            if rest >= k:
                heappush(heap, (-rest, i + skip, j + skip))
    most = _most(a, b, gaps, most)
    upper = lower + sum(most.values())
    yield lower, upper
    for gap in sorted(gaps, key=most.__getitem__, reverse=True):
        a0, a1, b0, b1 = gap
        upper -= most[gap]
        low = high = 0
        for low, high in _closer(a[a0:a1], b[b0:b1], most[gap], k):
            yield lower + low, upper + high
        lower += low
        upper += high


def _most(a: str, b: str, gaps: list[Gap], known: dict[Gap, int]) -> dict[Gap, int]:
    """The length of the longest common subsequence of each gap."""
    return {
        gap: known[gap] if gap in known else LCSseq.similarity(a[gap[0] : gap[1]], b[gap[2] : gap[3]]) for gap in gaps
    }


def exactly(a: str, b: str) -> int:
    """M, by comparing all positions."""
    return round(cydifflib.SequenceMatcher(None, a, b, autojunk=False).ratio() * (len(a) + len(b)) / 2)
