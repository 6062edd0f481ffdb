"""Buckets and packings: everything once, little padding, and the same for the same samples."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from retcon.core.types import Sample
from retcon.train.kernels.packing import PADDING, Size, buckets, pack

pytestmark = pytest.mark.torch

sizes = st.lists(st.builds(Size, st.integers(1, 3000), st.one_of(st.just(0), st.integers(1, 3000))), max_size=60)


@given(sizes, st.one_of(st.none(), st.integers(1, 5000)))
def test_buckets_hold_everything_and_little_padding(sizes, max_tokens):
    found = buckets(sizes, max_tokens=max_tokens)
    assert sorted(i for bucket in found for i in bucket) == list(range(len(sizes)))
    assert buckets(sizes, max_tokens=max_tokens) == found
    for bucket in found:
        rows = [sizes[i] for i in bucket]
        width, prefix = max(r.own for r in rows), max(r.prefix for r in rows)
        assert len({bool(r.prefix) for r in rows}) == 1
        if len(rows) > 1:
            assert sum(r.own for r in rows) >= (1 - PADDING) * len(rows) * width
            assert sum(r.own + r.prefix for r in rows) >= (1 - PADDING) * len(rows) * (width + prefix)
            assert max_tokens is None or len(rows) * width <= max_tokens


@st.composite
def sampled(draw):
    """Samples of a few prompts, learnt here and there after it; some nowhere."""
    prompts = draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=4))
    samples = []
    for _ in range(draw(st.integers(1, 12))):
        prompt = draw(st.sampled_from(prompts))
        mask = draw(st.lists(st.integers(0, 1), min_size=1, max_size=40))
        own = draw(st.lists(st.integers(0, 9), min_size=len(mask), max_size=len(mask)))
        mask = (0,) * len(prompt) + tuple(mask)
        samples.append(Sample((*prompt, *own), mask, (None,) * len(mask), (0,) * len(mask)))
    return samples


def seen(packing):
    """What each packed id is, by what it attends to: the ids at its own and earlier positions, from the layout."""
    ids, found = packing.ids[0].tolist(), [None] * packing.ids.numel()
    for bucket in packing.buckets:
        place = torch.arange(bucket.stop - bucket.start) if bucket.index is None else bucket.index
        place = place.view(bucket.rows, bucket.width) + bucket.start
        kept = torch.arange(bucket.rows * bucket.width) if bucket.kept is None else bucket.kept
        for at in kept.tolist():
            row, column = divmod(at, bucket.width)
            before = []
            if bucket.prefix is not None:
                prompt = bucket.prefix.index.view(bucket.prefix.count, -1)[bucket.prefix.rows[row]]
                mask = bucket.prefix.mask
                open_to = torch.isfinite(mask[row if len(mask) > 1 else 0, 0, column])
                before = prompt[open_to[: len(prompt)]].tolist()
                assert open_to[len(prompt) :].tolist() == [c <= column for c in range(bucket.width)]
            found[place[row, column]] = tuple(ids[i] for i in [*before, *place[row, : column + 1].tolist()])
    return found


@st.composite
def branched(draw):
    """Samples of trees, each of which leaves another one somewhere, what they have in common learnt or not."""
    samples = []
    prompts = draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=2))
    for tree in range(draw(st.integers(1, 3))):
        prompt = tuple(draw(st.sampled_from(prompts)))
        grown = []
        for _ in range(draw(st.integers(1, 5))):
            ids, mask = prompt, (0,) * len(prompt)
            if grown:
                other = draw(st.sampled_from(grown))
                cut = draw(st.integers(len(prompt) + 1, len(other.ids)))
                ids, mask = other.ids[:cut], other.mask[:cut]
            own = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=20)))
            learnt = tuple(draw(st.lists(st.integers(0, 1), min_size=len(own), max_size=len(own))))
            mask += (1, *learnt[1:]) if not grown else learnt
            ids += own
            grown.append(Sample(ids, mask, (None,) * len(ids), (0,) * len(ids), tree=f"tree {tree}"))
        samples += grown
    return draw(st.permutations(samples))


@given(st.one_of(sampled(), branched()), st.booleans())
def test_every_id_sees_what_it_sees_in_its_sample_and_no_more(samples, share):
    packing = pack(samples, share=share, dtype=torch.float32, device=torch.device("cpu"))
    contexts = seen(packing)
    assert [len(c) - 1 for c in contexts] == packing.positions[0].tolist()
    wanted = [s.ids[:t] for s in samples for t in range(len(s.ids)) if s.mask[t]]
    assert [contexts[i] for i in packing.source.tolist()] == wanted
    assert packing.padded >= packing.ids.numel()
    if not share:
        assert sorted(contexts) == sorted(s.ids[: t + 1] for s in samples for t in range(len(s.ids)))


@given(branched())
def test_what_the_samples_of_a_tree_begin_with_is_computed_once(samples):
    packing = pack(samples, share=True, dtype=torch.float32, device=torch.device("cpu"))
    trees = {}
    for sample in samples:
        trees.setdefault((sample.tree, sample.ids[: sample.mask.index(1)]), []).append(sample)
    shortest = 0
    for members in trees.values():
        one_by_one = sorted(members, key=lambda s: s.ids)
        shortest += len(one_by_one[0].ids)
        for before, sample in itertools.pairwise(one_by_one):
            alike = [a == b for a, b in zip(before.ids, sample.ids, strict=False)]
            shortest += len(sample.ids) - min([*alike, False].index(False), len(sample.ids) - 1, len(before.ids) - 1)
    assert packing.ids.numel() <= shortest
    learnt = [(tuple(s.ids[:t]), s.ids[t]) for s in samples for t in range(len(s.ids)) if s.mask[t]]
    if packing.repeats is not None:
        first, of = packing.repeats.first.tolist(), packing.repeats.of.tolist()
        assert [learnt[first[n]] for n in of] == learnt
        assert len(set(first)) == len(first) < len(learnt)
