"""Where two texts agree for long: all their common blocks of a length or more, without comparing all positions."""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]

Block = tuple[int, int, int]
"""Start in a, start in b, length."""

Gap = tuple[int, int, int, int]
"""a0, a1, b0, b1: nothing of a[a0:a1] and b[b0:b1] is matched yet, and both are more than nothing."""

PAIRS_PER_CHARACTER = 1
"""Pairs of equal k-grams that are looked at; where there are more (deep indentation, one character over and over) k
doubles. Similar texts have about one for two characters, on the diagonal."""


def common_blocks(a: str, b: str, k: int) -> tuple[list[Block], int]:
    """The maximal common blocks of k′ characters or more; and k′.

    k′ ≥ k, k doubled until there are few enough; k: 8 times a power of two. Every common substring of k′ characters
    or more lies within exactly one of the blocks, at its place in a and in b.

    Equal k-grams get equal names (doubling k, as Karp, Miller and Rosenberg do, 1972), a join on the names gives the
    pairs of equal k-grams, and a maximal block is a run of pairs along a diagonal.
    """
    n, m = len(a), len(b)
    codes, size = _packed(a + b)
    while size <= min(n, m):
        names, order = named(codes)
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
    """Each gram of 8 characters as one integer; of 2 where a character takes more than a byte. And 8 or 2."""
    try:
        raw, size = text.encode("latin-1"), 8
    except UnicodeEncodeError:
        raw, size = text.encode("utf-32-le", "surrogatepass"), 2
    return np.ndarray((max(len(text) - size + 1, 0),), np.int64, raw, 0, (8 // size,)).copy(), size


def named(codes: Ints) -> tuple[Ints, Ints]:
    """0, 1, 2 … for each integer, equal for equal ones; and an order that sorts by them (not stable)."""
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
