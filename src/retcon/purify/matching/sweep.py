"""What difflib matches in long texts that repeat themselves, where comparing all positions takes minutes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from retcon.purify.matching.blocks import Gap, Ints, named


def swept(a: str, b: str, below: int) -> Iterator[int]:
    """Ever higher lower bounds of M, the last of which is M; for a and b without a common block of `below` characters.

    Length after length from the longest that is left, one sweep over a for each: of the blocks of one length the first
    in a is matched, with its first place in b, so that nothing of this length is left before it, and the sweep goes
    on after it. Memory is linear in the texts, and a length costs time linear in them.
    """
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
        self._doubled = [named(codes)[0]]  # names of the grams of 1, 2, 4 … characters
        self._length = 0

    def shared(self, length: int, gap: Gap) -> Ints:
        """Where in a grams begin that the gap has in both texts."""
        self._prepare(length)
        a0, a1, b0, b1 = gap
        in_b = self._in_b[b0 : max(b1 - length + 1, b0)]
        self._marked[in_b] = True
        found = a0 + np.flatnonzero(self._marked[self._in_a[a0 : max(a1 - length + 1, a0)]])
        self._marked[in_b] = False
        return found

    def match(self, length: int, gap: Gap) -> list[Gap]:
        """The gap without its matched grams of this length: one gap more than there are matches; some may be empty."""
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
            self._doubled.append(named((names[:-half] << 32) | names[half:])[0])
        half = 2 ** (length.bit_length() - 1)
        names = self._doubled[length.bit_length() - 1]
        names, _ = named((names[: len(names) + half - length] << 32) | names[length - half :])
        self._in_a, self._in_b = names[: max(self._a - length + 1, 0)], names[self._a :]
        self._marked = np.zeros(len(names), bool)
        self._places = (np.sort((self._in_b << 32) | np.arange(len(self._in_b))) & 0xFFFFFFFF).tolist()
        self._range = np.concatenate(([0], np.cumsum(np.bincount(self._in_b, minlength=len(names))))).tolist()
