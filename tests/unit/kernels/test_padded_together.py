"""Which rows are padded together: by hand at each of the bounds, and against the rules themselves."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.train.kernels.packing import Size, buckets

Rows = Sequence[tuple[int, int]]
"""Own ids, and those that are seen before them."""


@pytest.mark.parametrize(
    ("rows", "bounds", "expected"),
    [
        ([], {}, []),
        ([(5, 0), (30, 0), (5, 0)], {}, [[1], [0, 2]]),
        # 17 of 20 ids are no padding, and 16
        ([(10, 0), (7, 0)], {}, [[0, 1]]),
        ([(10, 0), (6, 0)], {}, [[0], [1]]),
        # likewise in a bucket that is not the first
        ([(100, 0), (10, 0), (7, 0)], {}, [[0], [1, 2]]),
        ([(20, 100), (10, 100), (6, 100)], {}, [[0], [1], [2]]),
        # 34 of the 40 ids that are seen, and 33
        ([(10, 10), (10, 4)], {}, [[0, 1]]),
        ([(10, 10), (10, 3)], {}, [[0], [1]]),
        ([(20, 0), (10, 10), (10, 3)], {}, [[0], [1], [2]]),
        # of their own ids too few, whatever they see
        ([(10, 100), (5, 100)], {}, [[0], [1]]),
        # those without a prefix first, however short one is
        ([(10, 1), (10, 0)], {}, [[1], [0]]),
        ([(10, 5), (10, 0), (10, 5), (10, 0)], {}, [[1, 3], [0, 2]]),
        ([(9, 0), (10, 5), (10, 0), (9, 5)], {}, [[2, 0], [1, 3]]),
        # of rows of one length those that see most first
        ([(10, 9), (10, 10), (10, 10)], {}, [[1, 2, 0]]),
        ([(12, 0), (12, 0)], {"max_tokens": 24}, [[0, 1]]),
        ([(12, 0), (12, 0)], {"max_tokens": 23}, [[0], [1]]),
        ([(12, 3), (12, 3)], {"max_tokens": 23}, [[0], [1]]),
        # a mask of 2 rows, 10 ids and the 11 that they see
        ([(10, 1), (10, 1)], {"max_mask": 220}, [[0, 1]]),
        ([(10, 1), (10, 1)], {"max_mask": 219}, [[0], [1]]),
        ([(10, 0), (10, 0)], {"max_mask": 1}, [[0, 1]]),
    ],
)
def test_rows_go_together_up_to_each_bound(rows: Rows, bounds: dict[str, int], expected: list[list[int]]) -> None:
    assert buckets([Size(*row) for row in rows], **bounds) == expected


def may(rows: Rows, max_tokens: int | None, max_mask: int | None) -> bool:
    """Whether the rows may be a bucket, in whole numbers: of 20 ids 17 are to be no padding."""
    if len(rows) == 1:
        return True
    width, before = (max(part) for part in zip(*rows, strict=True))
    tokens = len(rows) * width
    return (
        len({prefix > 0 for _, prefix in rows}) == 1
        and 20 * sum(own for own, _ in rows) >= 17 * tokens
        and 20 * sum(own + prefix for own, prefix in rows) >= 17 * len(rows) * (width + before)
        and (max_tokens is None or tokens <= max_tokens)
        and (max_mask is None or not before or tokens * (width + before) <= max_mask)
    )


bound = st.one_of(st.none(), st.integers(1, 3000))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), max_size=20), bound, bound)
def test_a_bucket_ends_only_where_the_next_row_may_not_join(
    rows: list[tuple[int, int]], max_tokens: int | None, max_mask: int | None
) -> None:
    found = buckets([Size(*row) for row in rows], max_tokens=max_tokens, max_mask=max_mask)
    whole = [rows[n] for bucket in found for n in bucket]
    assert whole == sorted(rows, key=lambda row: (row[1] > 0, -row[0], -row[1]))
    wanted: list[list[tuple[int, int]]] = []
    for row in whole:
        if wanted and may([*wanted[-1], row], max_tokens, max_mask):
            wanted[-1].append(row)
        else:
            wanted.append([row])
    assert [[rows[n] for n in bucket] for bucket in found] == wanted
