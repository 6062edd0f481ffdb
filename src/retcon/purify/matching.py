"""How many characters difflib would match, as bounds that close in on the number."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import cydifflib
import numpy as np
from rapidfuzz.distance import LCSseq

from retcon.purify.blocks import Ints, common_blocks

SMALL = 300 * 300
"""Pairs of positions up to which comparing all of them costs less than looking for blocks."""

SHORTEST = 8
LONG = 16
"""Lengths of the common blocks that are looked for: `LONG` first, `SHORTEST` where none is left."""


def bounds(a: str, b: str, below: int | None = None) -> Iterator[tuple[int, int]]:
    """Pairs (lower, upper) around M, the characters that difflib matches in a and b; ever closer, equal at last.

    M is what Ratcliff and Obershelp's matching finds: the longest common block (of several the one that begins first
    in a, then in b), and the same again left and right of it. So, for any rectangle (a part of a and a part of b):
    what has been matched stays matched; M is at most the longest common subsequence; and the longest block of a
    rectangle is the longest of the text's maximal blocks cut to it. Rectangles with the most to win are divided first.

    below: no common block is this long (known by the caller); None: nothing is known.
    """
    upper = LCSseq.similarity(a, b)
    yield 0, upper
    k = LONG if below is None or below > LONG else SHORTEST
    if len(a) * len(b) <= SMALL or upper < k:
        yield (exactly(a, b),) * 2
        return
    blocks, k = common_blocks(a, b, k)
    if below is not None and k >= below:
        yield (exactly(a, b),) * 2
        return
    lower = 0
    left: list[tuple[int, int, int, int, int]] = []
    heap = [(-upper, 0, len(a), 0, len(b), blocks)]
    while heap:
        minus, a0, a1, b0, b1, blocks = heapq.heappop(heap)
        blocks = _cut(blocks, a0, a1, b0, b1, k)
        if not blocks.size:
            left.append((minus, a0, a1, b0, b1))
            continue
        i, j, size = _longest(blocks)
        lower += size
        upper += size + minus
        for c0, c1, d0, d1 in ((a0, i, b0, j), (i + size, a1, j + size, b1)):
            most = LCSseq.similarity(a[c0:c1], b[d0:d1])
            upper += most
            if most >= k:
                heapq.heappush(heap, (-most, c0, c1, d0, d1, blocks))
            elif most:
                left.append((-most, c0, c1, d0, d1))
        yield lower, upper
    for minus, a0, a1, b0, b1 in sorted(left):
        upper += minus
        low = high = 0
        for low, high in bounds(a[a0:a1], b[b0:b1], k):
            yield lower + low, upper + high
        lower += low
        upper += high


def exactly(a: str, b: str) -> int:
    """M itself, by comparing all positions."""
    blocks = cydifflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return sum(size for _, _, size in blocks)


def _cut(blocks: Ints, a0: int, a1: int, b0: int, b1: int, k: int) -> Ints:
    """The parts of the blocks within a[a0:a1] and b[b0:b1], of those that still have k characters."""
    i, j, size = blocks
    skip = np.maximum(np.maximum(a0 - i, b0 - j), 0)
    size = np.minimum(np.minimum(a1 - i, b1 - j), size) - skip
    long = np.flatnonzero(size >= k)
    skip = skip[long]
    return np.stack((i[long] + skip, j[long] + skip, size[long]))


def _longest(blocks: Ints) -> tuple[int, int, int]:
    """Start in a, start in b and length of the longest block; of several the first in a, then in b."""
    size = int(blocks[2].max())
    i, j, _ = blocks[:, blocks[2] == size]
    start = int(i.min())
    return start, int(j[i == start].min()), size
