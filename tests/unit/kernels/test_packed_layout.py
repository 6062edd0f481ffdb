"""Where each id of a packing is, what its buckets see before themselves, and who goes in which micro-batch, by hand."""

from __future__ import annotations

from dataclasses import fields

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

import torch

from retcon.core.types import Sample
from retcon.train.kernels.packing import MASK, Bucket, Packing, pack, packed_batches

pytestmark = pytest.mark.torch

NO = -torch.inf


def sample(*ids: int, prompt: int = 2, tree: str = "") -> Sample:
    """Learnt after the prompt."""
    mask = (0,) * prompt + (1,) * (len(ids) - prompt)
    return Sample(ids, mask, (None,) * len(ids), (0,) * len(ids), tree=tree)


def packed(samples: list[Sample], *, share: bool = True, dtype: torch.dtype = torch.float32) -> Packing:
    return pack(samples, share=share, dtype=dtype, device=torch.device("cpu"))


def plain(part: object) -> dict[str, object]:
    """The numbers of a bucket or a prefix, without its mask."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    values = {name: v.tolist() if isinstance(v, torch.Tensor) else v for name, v in values.items() if name != "mask"}
    return values | ({"prefix": plain(values["prefix"])} if values.get("prefix") is not None else {})


def test_rows_that_follow_prompts_of_two_lengths() -> None:
    packing = packed(
        [
            sample(10, 11, 12, 13, 20, 21, 22, 23, prompt=4),
            sample(10, 11, 12, 13, 30, 31, 32, 33, prompt=4),
            sample(14, 15, 16, 40, 41, 42, 43, prompt=3),
            sample(14, 15, 16, 50, 51, 52, prompt=3),
        ]
    )
    assert packing.ids.tolist() == [
        [10, 11, 12, 13, 14, 15, 16, 20, 21, 22, 23, 30, 31, 32, 33, 40, 41, 42, 43, 50, 51, 52]
    ]
    assert packing.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 4, 5, 6, 7, 4, 5, 6, 7, 3, 4, 5, 6, 3, 4, 5]]
    assert packing.ids.dtype == packing.positions.dtype == torch.int64
    prompts, own = packing.buckets
    assert plain(prompts) == {
        "start": 0, "stop": 7, "rows": 2, "width": 4, "index": [0, 1, 2, 3, 4, 5, 6, 6],
        "kept": [0, 1, 2, 3, 4, 5, 6], "prefix": None,
    }  # fmt: skip
    assert plain(own) == {
        "start": 7,
        "stop": 22,
        "rows": 4,
        "width": 4,
        "index": [*range(15), 14],
        "kept": list(range(15)),
        "prefix": {
            "index": [0, 1, 2, 3, 4, 5, 6, 6], "kept": [0, 1, 2, 3, 4, 5, 6], "distinct": True, "count": 2,
            "rows": [0, 0, 1, 1],
        },
    }  # fmt: skip
    causal = [[0, NO, NO, NO], [0, 0, NO, NO], [0, 0, 0, NO], [0, 0, 0, 0]]
    all_of_it, but_the_padding = ([[*prompt, *row] for row in causal] for prompt in ((0, 0, 0, 0), (0, 0, 0, NO)))
    assert own.prefix is not None
    assert own.prefix.mask.tolist() == [[all_of_it], [all_of_it], [but_the_padding], [but_the_padding]]
    assert packing.source.tolist() == [3, 7, 8, 9, 3, 11, 12, 13, 6, 15, 16, 17, 6, 19, 20]
    assert packing.padded == 8 + 16
    assert packing.repeats is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_trees_whose_branches_begin_with_the_same_prompt(dtype: torch.dtype) -> None:
    packing = packed(
        [
            sample(1, 2, 3, 4, 5, 6, tree="a"),
            sample(1, 2, 3, 4, 7, 8, tree="a"),
            sample(1, 2, 10, 11, 12, 13, tree="b"),
            sample(1, 2, 10, 11, 14, 15, tree="b"),
        ],
        dtype=dtype,
    )
    assert packing.ids.tolist() == [[1, 2, 5, 6, 7, 8, 12, 13, 14, 15, 3, 4, 10, 11]]
    assert packing.positions.tolist() == [[0, 1, 4, 5, 4, 5, 4, 5, 4, 5, 2, 3, 2, 3]]
    prompt, own = packing.buckets
    assert prompt == Bucket(start=0, stop=2, rows=1, width=2, index=None, kept=None, prefix=None)
    assert plain(own) == {
        "start": 2,
        "stop": 14,
        "rows": 6,
        "width": 2,
        "index": None,
        "kept": None,
        "prefix": {
            "index": [0, 1, 1, 1, 0, 1, 10, 11, 0, 1, 12, 13], "kept": [0, 1, *range(4, 12)], "distinct": False,
            "count": 3, "rows": [1, 1, 2, 2, 0, 0],
        },
    }  # fmt: skip
    assert own.prefix is not None
    after_four, after_two = [[0, 0, 0, 0, 0, NO], [0] * 6], [[0, 0, NO, NO, 0, NO], [0, 0, NO, NO, 0, 0]]
    assert own.prefix.mask.tolist() == [[after_four]] * 4 + [[after_two]] * 2
    assert own.prefix.mask.dtype == dtype
    assert packing.source.tolist() == [1, 10, 11, 2, 1, 10, 11, 4, 1, 12, 13, 6, 1, 12, 13, 8]
    assert packing.padded == packing.ids.numel() == 14
    assert packing.repeats is not None, "3 and 4, 10 and 11 are learnt twice"
    first, of = packing.repeats.first, packing.repeats.of
    assert first[of].tolist() == [0, 1, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 8, 9, 14, 15]
    assert sorted(first.tolist()) == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 14, 15]


def test_prompts_of_one_length_have_one_mask() -> None:
    packing = packed([sample(1, 2, 3, 4), sample(1, 2, 5, 6), sample(8, 9, 3, 4), sample(8, 9, 5, 6)])
    _, own = packing.buckets
    assert own.prefix is not None
    assert own.prefix.mask.tolist() == [[[[0, 0, 0, NO], [0, 0, 0, 0]]]]
    assert own.prefix.index.tolist() == [0, 1, 2, 3]
    assert own.prefix.kept is None
    assert own.prefix.rows.tolist() == [0, 0, 1, 1]
    assert own.prefix.distinct


def test_nothing_is_shared_unless_it_is_asked_for() -> None:
    packing = packed([sample(1, 2, 3, 4, tree="a"), sample(1, 2, 3, 5, tree="a")], share=False)
    assert packing.ids.tolist() == [[1, 2, 3, 4, 1, 2, 3, 5]]
    assert packing.source.tolist() == [1, 2, 5, 6]
    assert packing.repeats is None
    assert [plain(bucket)["prefix"] for bucket in packing.buckets] == [None]


@pytest.mark.parametrize(("count", "rows"), [(4, [4]), (5, [4, 1])])
def test_the_mask_of_a_bucket_stays_small(count: int, rows: list[int]) -> None:
    own, prompt = 1000, 2500
    samples = [sample(*range(prompt), *[n] * own, prompt=prompt) for n in range(count)]
    assert 4 * own * (own + prompt) <= MASK < 5 * own * (own + prompt)
    assert [b.rows for b in packed(samples).buckets if b.prefix is not None] == rows


def lengths(samples: list[Sample], max_tokens: int, *, share: bool) -> list[list[int]]:
    return [[len(s.ids) for s in batch] for batch in packed_batches(samples, max_tokens, share=share)]


@pytest.mark.parametrize("share", [False, True])
def test_micro_batches_are_filled_from_the_longest_sample_on(share: bool) -> None:
    alone = [sample(n, *range(1, size), prompt=1) for n, size in enumerate((3, 5, 2, 9, 4, 1))]
    assert lengths(alone, 7, share=share) == [[9], [5], [4, 3], [2, 1]]
    assert lengths(alone, 24, share=share) == [[9, 5, 4, 3, 2, 1]]
    assert lengths([], 7, share=share) == []


def test_a_family_costs_its_prompt_once_a_micro_batch() -> None:
    family = [sample(1, 2, 3, 4, *own, prompt=4) for own in ((5, 5), (6, 6, 6), (7, 7))]
    samples = [sample(9, 9, prompt=1), *family, sample(8, 8, 8)]
    assert lengths(samples, 11, share=True) == [[7, 6, 6], [3, 2]]
    assert lengths(samples, 10, share=True) == [[7, 6], [6, 3], [2]]
    assert lengths(samples, 9, share=True) == [[7, 6], [6, 3], [2]]
    assert lengths(samples, 8, share=True) == [[7], [6, 6], [3, 2]]
    assert lengths(samples, 9, share=False) == [[7], [6], [6, 3], [2]]


def test_a_tree_costs_once_what_its_samples_begin_with() -> None:
    long = [sample(1, 2, 3, 4, *own, tree="a") for own in ((5, 6), (7, 8))]
    short = [sample(1, 2, 9, own, tree="b") for own in (1, 2, 3)]
    samples = [short[0], long[0], short[1], long[1], short[2]]
    # what is computed: 6 and 2 ids of the first tree, then 2 and 1 and 1 of the other
    assert lengths(samples, 12, share=True) == [[6, 6, 4, 4, 4]]
    assert lengths(samples, 11, share=True) == [[6, 6, 4, 4], [4]]
    assert lengths(samples, 10, share=True) == [[6, 6, 4], [4, 4]]
    assert lengths(samples, 8, share=True) == [[6, 6], [4, 4, 4]]
    found = packed_batches(samples, 7, share=True)
    assert [[s.ids[-1] for s in batch] for batch in found] == [[6], [8], [1, 2, 3]]
