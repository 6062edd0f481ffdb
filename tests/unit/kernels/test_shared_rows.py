"""Which beginnings samples share, and the rows that are computed for them, by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.core.types import Sample
from retcon.train.kernels.packing import (
    MASK,
    Family,
    Row,
    chain,
    families,
    prompt_length,
    rows_of,
)

pytestmark = pytest.mark.torch


def sample(*ids: int, prompt: int = 2, tree: str = "") -> Sample:
    """Learnt after the prompt."""
    mask = (0,) * prompt + (1,) * (len(ids) - prompt)
    return Sample(ids, mask, (None,) * len(ids), (0,) * len(ids), tree=tree)


@pytest.mark.parametrize(("mask", "length"), [((0, 0, 1, 0, 1), 2), ((1, 0), 0), ((0, 0, 0), 0), ((), 0)])
def test_a_prompt_ends_before_the_first_id_that_is_learnt(mask: tuple[int, ...], length: int) -> None:
    assert prompt_length(Sample(tuple(range(len(mask))), mask, (), ())) == length


def test_a_sample_that_is_learnt_nowhere_keeps_a_row_of_its_own() -> None:
    """Also where all of it is another one's prompt, or another such sample."""
    samples = [sample(1, 2, 3), sample(1, 2), sample(1, 2), sample(1, 2, 4)]
    assert families(samples) == [Family((0, 3), 2), Family((1,), 0), Family((2,), 0)]
    rows, own = rows_of(samples, share=True)
    assert [(rows[n].start, rows[n].stop) for n in own] == [(2, 3), (0, 2), (0, 2), (2, 3)]


def test_families_share_a_prompt_and_come_as_they_appear() -> None:
    samples = [
        sample(7, 7, 1),
        sample(1, 2, 3),
        sample(1, 2, 4, 5, prompt=3),
        sample(9, 1, prompt=0),  # of no prompt
        sample(1, 2, 4, 5),
        sample(9, 1, prompt=0),
        sample(1, 2, 4, 6, prompt=3),
        sample(1, 2, 3),
    ]
    assert families(samples) == [
        Family((0,), 0), Family((1, 4, 7), 2), Family((2, 6), 3), Family((3,), 0), Family((5,), 0),
    ]  # fmt: skip
    assert families([]) == []


def test_a_prompt_is_not_shared_where_the_mask_would_be_large() -> None:
    """Its elements: what the longest has of its own by all of it."""
    long, short = tuple(range(8192)), tuple(range(7000))
    own = MASK // 8192
    for prompt, shared in ((8192 - own, True), (8192 - own - 1, False)):
        found = families([sample(*short, prompt=prompt), sample(*long, prompt=prompt)])
        assert found == ([Family((0, 1), prompt)] if shared else [Family((0,), 0), Family((1,), 0)])


def test_rows_are_the_beginnings_and_then_what_each_sample_has_of_its_own() -> None:
    samples = [
        sample(7, 7, 1, 2),  # alone
        sample(1, 2, 3, 4, 5, 6, tree="a"),
        sample(1, 2, 3, 4, 7, 8, tree="a"),
        sample(1, 2, 3, 9, 9, tree="a"),
        sample(1, 2, 3, 4, 5),  # of no tree: it shares the prompt alone
        sample(1, 2, 8, 8, tree="b"),  # these two part where the prompt ends
        sample(1, 2, 9, 9, tree="b"),
        sample(5, 6, 1, tree="c"),
        sample(5, 6, 1, tree="c"),  # of an equal sample the last id is its own
        sample(5, 6, 1, 4, tree="c"),
    ]
    rows, own = rows_of(samples, share=True)
    assert rows == [
        Row(1, 0, 2, None), Row(1, 2, 3, 0), Row(1, 3, 4, 1), Row(7, 0, 2, None), Row(0, 0, 4, None), Row(1, 4, 6, 2),
        Row(2, 4, 6, 2), Row(3, 3, 5, 1), Row(4, 2, 5, 0), Row(5, 2, 4, 0), Row(6, 2, 4, 0), Row(7, 2, 3, 3),
        Row(8, 2, 3, 3), Row(9, 2, 4, 3),
    ]  # fmt: skip
    assert own == list(range(4, 14))
    assert [chain(rows, n) for n in (0, 2, 5, 7, 13, None)] == [[0], [0, 1, 2], [0, 1, 2, 5], [0, 1, 7], [3, 13], []]


def test_rows_that_share_nothing_are_the_samples() -> None:
    samples = [sample(1, 2, 3, 4, tree="a"), sample(1, 2, 3, tree="a")]
    assert rows_of(samples, share=False) == ([Row(0, 0, 4, None), Row(1, 0, 3, None)], [0, 1])
    assert rows_of([], share=True) == ([], [])
