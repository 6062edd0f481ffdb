"""Which rows are padded together: by hand at each of the bounds, and against the rules themselves."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from retcon.train.kernels.packing import Size, buckets

Rows = Sequence[tuple[int, int]]
"""Own ids, and those that are seen before them."""


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
