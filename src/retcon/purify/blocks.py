"""Where two texts agree for long: all their common blocks of a length or more, without comparing all positions."""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]

PAIRS_PER_CHARACTER = 4
"""Pairs of equal k-grams looked at; more (deep indentation, one character over and over) make k double."""


def common_blocks(a: str, b: str, k: int) -> tuple[Ints, int]:
    """The maximal common blocks of at least k' characters, and k' ≥ k: k doubled until there are few enough of them.

    k: 8 times a power of two. The blocks: (3, B), start in a, start in b, length; none contains another, and each
    common substring of k' characters or more lies in exactly one at the same offset between a and b.

    Equal k-grams get equal names (Karp, Miller and Rosenberg 1972, doubling k), a join on the names gives all pairs of
    equal k-grams, and a maximal block is a run of pairs along a diagonal.
    """
    n, m = len(a), len(b)
    names, length = _packed(a + b)
    while True:
        if min(n, m) < length:
            return np.empty((3, 0), np.int64), max(k, length)
        names, order = _renamed(names)
        if length >= k:
            in_a, in_b = names[: n - length + 1], names[n:]
            counts = np.bincount(in_b, minlength=len(names))
            pairs = counts[in_a]
            total = int(pairs.sum())
            if total <= PAIRS_PER_CHARACTER * (n + m):
                break
        names = (names[:-length] << 32) | names[length:]
        length *= 2
    if not total:
        return np.empty((3, 0), np.int64), length
    of_b = order[order >= n] - n
    begin = np.cumsum(counts) - counts
    i = np.repeat(np.arange(len(in_a)), pairs)
    j = of_b[np.arange(total) + np.repeat(begin[in_a] - np.cumsum(pairs) + pairs, pairs)]
    return _runs(i, j, n, m, length), length


def _packed(text: str) -> tuple[Ints, int]:
    """Each gram of 8 characters as one integer; of 2 where a character does not fit a byte."""
    try:
        raw, length = text.encode("latin-1"), 8
    except UnicodeEncodeError:
        raw, length = text.encode("utf-32-le", "surrogatepass"), 2
    return np.ndarray((max(len(text) - length + 1, 0),), "<i8", raw, 0, (8 // length,)).copy(), length


def _renamed(names: Ints) -> tuple[Ints, Ints]:
    """The same equalities with names 0, 1, 2 …, and an order that sorts by them."""
    order = np.argsort(names)
    inorder = names[order]
    fresh = np.empty(len(names), np.int64)
    fresh[order] = np.cumsum(np.concatenate(([False], inorder[1:] != inorder[:-1])))
    return fresh, order


def _runs(i: Ints, j: Ints, n: int, m: int, length: int) -> Ints:
    """Pairs (i, j) of equal grams, joined along their diagonals: (3, B)."""
    width = n + 1  # one more than fits, so that two diagonals never touch
    key = np.sort((i - j + m) * width + i)
    gap = np.diff(key) != 1
    first = key[np.concatenate(([True], gap))]
    last = key[np.concatenate((gap, [True]))]
    diagonal, start = np.divmod(first, width)
    return np.stack((start, start - diagonal + m, last - first + length))
