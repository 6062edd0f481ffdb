"""Which sequences are padded together: those of like length, so that little of what is computed is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PADDING = 0.15
"""Share of padding in a bucket of more than one row at most."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a row: its own ids, and those before them that it sees."""

    own: int
    prefix: int = 0


def buckets(sizes: Sequence[Size], *, max_tokens: int | None = None, max_mask: int | None = None) -> list[list[int]]:
    """Indices of `sizes` in buckets, the longest rows first; rows with and without a prefix do not mix.

    Where a bucket has more than one row, at most PADDING of its rows' ids is padding, and likewise of what they see,
    which is padded to the longest prefix and the longest row. max_tokens: padded, of a bucket; a longer row goes alone.
    max_mask: rows × tokens × what they see, where there are prefixes of several lengths.
    """
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i].prefix > 0, -sizes[i].own, -sizes[i].prefix))
    return list(_greedy(order, sizes, max_tokens, max_mask))


def _greedy(
    order: list[int], sizes: Sequence[Size], max_tokens: int | None, max_mask: int | None
) -> Iterator[list[int]]:
    bucket: list[int] = []
    own = seen = longest = 0
    for index in order:
        size = sizes[index]
        count = len(bucket) + 1
        if bucket:
            first = sizes[bucket[0]]  # the widest
            prefix = max(longest, size.prefix)
            area = count * first.own * (first.own + prefix)
            if (
                bool(size.prefix) != bool(first.prefix)
                or own + size.own < (1 - PADDING) * count * first.own
                or seen + size.own + size.prefix < (1 - PADDING) * count * (first.own + prefix)
                or (max_tokens is not None and count * first.own > max_tokens)
                or (max_mask is not None and prefix > 0 and area > max_mask)
            ):
                yield bucket
                bucket, own, seen, longest = [], 0, 0, 0
        bucket.append(index)
        own, seen, longest = own + size.own, seen + size.own + size.prefix, max(longest, size.prefix)
    if bucket:
        yield bucket
