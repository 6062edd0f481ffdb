"""Similarity of programs, Sim(c_t, c'): difflib's ratio, computed faster."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import Any

import cydifflib
import numpy as np
from rapidfuzz.distance import LCSseq, Postfix, Prefix

Ints = np.ndarray[Any, np.dtype[np.int64]]

Block = tuple[int, int, int]
"""Start in a, start in b, length."""

Gap = tuple[int, int, int, int]
"""a0, a1, b0, b1: nothing of a[a0:a1] and b[b0:b1] is matched yet, and both are more than nothing."""

PAIRS_PER_CHARACTER = 1
"""Pairs of equal k-grams that are looked at; where there are more (deep indentation, one character over and over) k
doubles. Similar texts have about one for two characters, on the diagonal."""

SMALL = 300 * 300
"""Pairs of positions up to which comparing all of them costs less than looking for blocks."""

LARGE = 1000 * 1000
"""From here on comparing all positions is left to no text: of texts that repeat themselves it would take minutes."""

LONG, SHORT = 16, 8
"""Lengths of the common blocks that are looked for first, and at last."""


def similarity(a: str, b: str) -> float:
    """Return the Ratcliff-Obershelp ratio of two texts, in [0, 1].

    1 for two empty texts. Not symmetric: `a` is c_t, `b` is c'. Equals `difflib.SequenceMatcher(None, a, b,
    autojunk=False).ratio()` to the last bit. autojunk stays off: it would drop frequent characters from texts of
    200 and more, so that long programs look less alike than they are."""
    if a == b:
        return 1.0
    matched = 0
    for matched, _ in bounds(a, b):  # noqa: B007
        pass
    return _ratio(matched, len(a) + len(b))


@lru_cache(maxsize=16)
def at_least(a: str, b: str, gamma: float) -> bool:
    """Whether similarity(a, b) ≥ gamma, computed no further than needed."""
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
    """Return the fewest matched characters whose ratio is gamma or more."""
    needed = max(0, math.ceil(gamma * total / 2) - 1)
    while _ratio(needed, total) < gamma:
        needed += 1
    return needed


def bounds(a: str, b: str) -> Iterator[tuple[int, int]]:
    """Yield bounds (lower, upper) of M, the characters that difflib matches.

    They never widen, and are equal at last. M is the sum of Ratcliff and Obershelp's matching: the longest common
    block (the first in a, then in b), and so on in the gap before it and in the gap after it. What is matched is a
    lower bound; the longest common subsequences of the gaps, which no matching exceeds, make an upper one."""
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
    """Return the length of the common prefix if it is matched first.

    Else 0. A block that is as long, and not on the prefix's diagonal, covers the prefix's middle and has it at
    another place."""
    length = Prefix.similarity(a, b)
    margin = max(len(a), len(b)) - length
    if length <= margin:
        return 0
    middle = a[margin:length]
    return length if b.find(middle) == margin and b.find(middle, margin + 1) < 0 else 0


def _closer(a: str, b: str, upper: int, below: int | None) -> Iterator[tuple[int, int]]:
    """Yield bounds where M ≤ upper and blocks are shorter than `below`."""
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
        for matched in sweep(a, b, below or upper + 1):
            yield matched, upper
    yield matched, matched


def _divided(a: str, b: str, upper: int, blocks: list[Block], k: int) -> Iterator[tuple[int, int]]:
    """`bounds` from all maximal common blocks of k characters or more.

    The longest block of a gap is the longest of these when cut to the gap. Gaps do not influence each other, so the
    longest block of all gaps may be matched next: the first in the heap that no match cuts."""
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
    """Return the length of the longest common subsequence of each gap."""
    return {
        gap: known[gap] if gap in known else LCSseq.similarity(a[gap[0] : gap[1]], b[gap[2] : gap[3]]) for gap in gaps
    }


def exactly(a: str, b: str) -> int:
    """M, by comparing all positions."""
    ratio: float = cydifflib.SequenceMatcher(None, a, b, autojunk=False).ratio()
    return round(ratio * (len(a) + len(b)) / 2)


def common_blocks(a: str, b: str, k: int) -> tuple[list[Block], int]:
    """Return the maximal common blocks of k′ characters or more, and k′.

    k′ ≥ k, k doubled until there are few enough; k: 8 times a power of two. Every common substring of k′ characters
    or more lies within exactly one of the blocks, at its place in a and in b.

    Equal k-grams get equal names (doubling k, as Karp, Miller and Rosenberg do, 1972), a join on the names gives the
    pairs of equal k-grams, and a maximal block is a run of pairs along a diagonal."""
    n, m = len(a), len(b)
    codes, size = _packed(a + b)
    while size <= min(n, m):
        names, order = name_codes(codes)
        if size >= k:
            in_a = names[: n - size + 1]  # what lies across the border between a and b is in neither
            in_b = names[n:]
            counts = np.bincount(in_b, minlength=len(names))
            pairs = counts[in_a]
            total = int(pairs.sum())
            if total <= PAIRS_PER_CHARACTER * (n + m):
                i = np.repeat(np.arange(len(in_a)), pairs)
                first = (np.cumsum(counts) - counts)[in_a]  # of each name's places in b, which stand together
                nth = np.arange(total) - np.repeat(np.cumsum(pairs) - pairs, pairs)
                j = (order[order >= n] - n)[np.repeat(first, pairs) + nth]
                return _runs(i, j, n, m, size), size
        codes = (names[:-size] << 32) | names[size:]
        size *= 2
    return [], max(k, size)


def _packed(text: str) -> tuple[Ints, int]:
    """Pack each gram of 8 (wide characters: 2) into one integer."""
    try:
        raw, size = text.encode("latin-1"), 8
    except UnicodeEncodeError:
        raw, size = text.encode("utf-32-le", "surrogatepass"), 2
    return np.ndarray((max(len(text) - size + 1, 0),), np.int64, raw, 0, (8 // size,)).copy(), size


def name_codes(codes: Ints) -> tuple[Ints, Ints]:
    """Number equal integers alike, and return an order that sorts them."""
    order = np.argsort(codes)
    inorder = codes[order]
    names = np.empty(len(codes), np.int64)
    names[order] = np.cumsum(np.concatenate(([False], inorder[1:] != inorder[:-1])))
    return names, order


def _runs(i: Ints, j: Ints, n: int, m: int, size: int) -> list[Block]:
    """Pairs (i, j) of equal grams, joined along their diagonals."""
    if not len(i):
        return []
    width = n + 1  # more than there are places on a diagonal: the keys of two diagonals never follow each other
    key = np.sort((i - j + m) * width + i)
    gap = np.diff(key) != 1
    begin = key[np.concatenate(([True], gap))]
    end = key[np.concatenate((gap, [True]))]
    diagonal, start = np.divmod(begin, width)
    return list(zip(start.tolist(), (start - diagonal + m).tolist(), (end - begin + size).tolist(), strict=True))


def sweep(a: str, b: str, below: int) -> Iterator[int]:
    """Yield rising lower bounds of M, the last of which is M.

    For texts without a common block of `below` characters. Length after length from the longest that is left, one
    sweep over a for each: of the blocks of one length the first in a is matched, with its first place in b, so that
    nothing of this length is left before it. Memory is linear in the texts, and so is the time of each length."""
    grams = _Grams(a, b)
    gaps: list[Gap] = [(0, len(a), 0, len(b))]
    matched, length = 0, min(below - 1, len(a), len(b))
    while length:
        some, none = 0, length + 1  # lengths with and without a common block
        while none - some > 1:
            length = (some + none) // 2
            if any(len(grams.shared(length, gap)) for gap in gaps):
                some = length
            else:
                none = length
        length = some
        if length:
            before, gaps = gaps, []
            for gap in before:
                rest = grams.match(length, gap)
                matched += length * (len(rest) - 1)
                gaps += [g for g in rest if g[0] < g[1] and g[2] < g[3]]
            yield matched
            length -= 1
    yield matched


class _Grams:
    """The grams of two texts, by length."""

    def __init__(self, a: str, b: str) -> None:
        self._a = len(a)
        codes = np.frombuffer((a + b).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
        self._doubled = [name_codes(codes)[0]]  # names of the grams of 1, 2, 4 … characters
        self._length = 0

    def shared(self, length: int, gap: Gap) -> Ints:
        """Return the starts in a of grams that both sides share."""
        self._prepare(length)
        a0, a1, b0, b1 = gap
        in_b = self._in_b[b0 : max(b1 - length + 1, b0)]
        self._marked[in_b] = True
        found = a0 + np.flatnonzero(self._marked[self._in_a[a0 : max(a1 - length + 1, a0)]])
        self._marked[in_b] = False
        return found

    def match(self, length: int, gap: Gap) -> list[Gap]:
        """Split the gap at its matched grams of this length: one gap more than there are matches; some may be empty."""
        a0, a1, b0, b1 = gap
        gaps = []
        found = self.shared(length, gap)
        for i, name in zip(found.tolist(), self._in_a[found].tolist(), strict=True):
            if i < a0:
                continue
            first, end = self._range[name], self._range[name + 1]
            at = bisect_left(self._places, b0, first, end)
            if at < end and self._places[at] + length <= b1:
                j = self._places[at]
                gaps.append((a0, i, b0, j))
                a0, b0 = i + length, j + length
        return [*gaps, (a0, a1, b0, b1)]

    def _prepare(self, length: int) -> None:
        if length == self._length:
            return
        self._length = length
        while 2 ** len(self._doubled) <= length:
            names, half = self._doubled[-1], 2 ** (len(self._doubled) - 1)
            self._doubled.append(name_codes((names[:-half] << 32) | names[half:])[0])
        half = 2 ** (length.bit_length() - 1)
        names = self._doubled[length.bit_length() - 1]
        names, _ = name_codes((names[: len(names) + half - length] << 32) | names[length - half :])
        self._in_a, self._in_b = names[: max(self._a - length + 1, 0)], names[self._a :]
        self._marked = np.zeros(len(names), bool)
        self._places = (np.sort((self._in_b << 32) | np.arange(len(self._in_b))) & 0xFFFFFFFF).tolist()
        self._range = np.concatenate(([0], np.cumsum(np.bincount(self._in_b, minlength=len(names))))).tolist()
