"""Batches: what is padded, who is with whom, and that all of it comes from seeds."""

from dataclasses import fields, replace

import pytest
import torch

from retcon.core.errors import UnscoredTokens
from retcon.core.types import Sample
from retcon.train.batch import check_scored, collate, computed_samples, epoch_batch, micro_batches, minibatches

pytestmark = pytest.mark.torch


def sample(length, learnt=1, advantage=1.0):
    mask = (0,) * (length - learnt) + (1,) * learnt
    logprobs = tuple(-0.5 if m else None for m in mask)
    return Sample(tuple(range(1, length + 1)), mask, logprobs, (0,) * length, (advantage,) * length)


def test_collate_pads_on_the_right():
    batch = collate([sample(3), sample(2, advantage=-1.0)], pad_id=9)
    assert batch.ids.tolist() == [[1, 2, 3], [1, 2, 9]]
    assert batch.mask.tolist() == [[False, False, True], [False, True, False]]
    assert batch.old_logprobs.tolist() == [[0, 0, -0.5], [0, -0.5, 0]]
    assert batch.advantages.tolist() == [[1, 1, 1], [-1, -1, 0]]
    spliced = replace(sample(4, learnt=2), spliced=(0, 0, 0, 1))
    assert collate([spliced, sample(2)]).spliced.tolist() == [[False, False, False, True], [False] * 4]


def test_what_is_no_number_is_true_or_false_and_all_others_are_float32():
    whole = replace(sample(3), weights=(None, None, 0.5), reference=(None, None, -0.25))
    batch = collate([whole, sample(2)])
    assert (batch.ids.dtype, batch.mask.dtype, batch.spliced.dtype) == (torch.int64, torch.bool, torch.bool)
    floats = (batch.old_logprobs, batch.advantages, batch.weights, batch.reference_logprobs)
    assert {one.dtype for one in floats} == {torch.float32}
    assert batch.reference_logprobs[0, 2] == -0.25
    assert collate([sample(3)]).reference_logprobs is None


def test_what_pads_a_reference_is_a_number():
    """Not nan, which a gradient of 0 would not get rid of."""
    held, short = (replace(sample(n), reference=(-0.25,) * n) for n in (3, 2))
    assert collate([held, short]).reference_logprobs.tolist() == [[-0.25] * 3, [-0.25, -0.25, 0.0]]


def test_all_of_a_batch_lies_on_its_device():
    whole = replace(sample(3), weights=(None, None, 0.5), reference=(0.0, 0.0, -0.25), predicted=(0, 1, 0), scale=0.5)
    batch = collate([whole, sample(2)], device="meta")
    assert {getattr(batch, part.name).device.type for part in fields(batch)} == {"meta"}


def test_weights_are_one_where_there_are_none():
    weighed = replace(sample(3), weights=(None, None, 0.5))
    assert collate([weighed, sample(2)]).weights.tolist() == [[1, 1, 0.5], [1, 1, 1]]
    assert collate([sample(3), sample(2)]).weights is None


def test_an_id_that_nothing_predicts_is_refused():
    with pytest.raises(ValueError, match="first id"):
        collate([sample(3), sample(2, learnt=2)])


def test_ids_without_logprobs_are_refused():
    scored = sample(3)
    check_scored(scored)
    with pytest.raises(UnscoredTokens, match="1 token of"):
        check_scored(Sample(scored.ids, scored.mask, (None, None, None), scored.spliced))


def test_micro_batches_hold_everything_within_the_budget():
    samples = [sample(n) for n in (5, 30, 6, 5, 12, 4, 12, 11)]
    batches = micro_batches(samples, max_tokens=24)
    assert sorted(len(s.ids) for b in batches for s in b) == [4, 5, 5, 6, 11, 12, 12, 30]
    assert [[len(s.ids) for s in b] for b in batches] == [[30], [12, 12], [11], [6, 5, 5], [4]]


def test_minibatches_split_evenly_by_seed_and_step():
    samples = [sample(n) for n in range(2, 12)]
    first = minibatches(samples, 3, seed=1, step=1)
    assert sorted(map(len, first)) == [3, 3, 4]
    assert sorted(len(s.ids) for part in first for s in part) == list(range(2, 12))
    assert minibatches(samples, 3, seed=1, step=1) == first
    assert minibatches(samples, 3, seed=1, step=2) != first
    assert minibatches(samples, 3, seed=2, step=1) != first


def test_more_minibatches_than_samples():
    assert [len(p) for p in minibatches([sample(3), sample(4)], 5, seed=0, step=0)] == [1, 1]
    assert minibatches([], 5, seed=0, step=0) == []


def test_epochs_show_each_sample_once_and_in_another_order():
    drawn = [i for step in range(10) for i in epoch_batch(10, 3, seed=4, step=step)]
    assert sorted(drawn[:10]) == sorted(drawn[10:20]) == sorted(drawn[20:]) == list(range(10))
    assert drawn[:10] != drawn[10:20]
    assert drawn[:10] != [i for step in range(4) for i in epoch_batch(10, 3, seed=5, step=step)][:10]


def test_a_batch_larger_than_an_epoch():
    assert sorted(epoch_batch(2, 5, seed=0, step=0)[:4]) == [0, 0, 1, 1]


def test_further_epochs_deal_anew_and_the_first_is_as_without_them() -> None:
    samples = [sample(n) for n in range(3, 20)]
    once = minibatches(samples, 3, seed=1, step=1)
    thrice = minibatches(samples, 3, seed=1, step=1, epochs=3)
    assert thrice[:3] == once
    assert len(thrice) == 9
    for epoch in (thrice[:3], thrice[3:6], thrice[6:]):
        assert sorted(len(s.ids) for part in epoch for s in part) == [len(s.ids) for s in samples]
    assert thrice[3:6] != once
    assert thrice[6:] != thrice[3:6]


def test_an_update_computes_what_has_something_to_learn_and_a_reason_to():
    plain, flat, void = sample(3), sample(3, advantage=0.0), sample(3, learnt=0)
    held, unjudged = replace(flat, reference=(0.0, 0.0, -0.5)), replace(plain, advantages=None)
    samples = [plain, flat, void, held, unjudged]
    assert computed_samples(samples, 0.0) == [plain, held]
    assert computed_samples(samples, 0.1) == [plain, flat, held, unjudged]
