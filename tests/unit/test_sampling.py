"""Inverse-CDF sampling: its distribution, its edges and its random streams."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retcon.engine.sampling import NUCLEUS_GROWTH, Sampler, invert, invert_nucleus, uniforms
from retcon.engine.types import SamplingParams

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1."""


def chi_square(drawn: torch.Tensor, probs: torch.Tensor) -> float:
    """Pearson's statistic of drawn ids against probs (V,); with V - 1 degrees of freedom."""
    expected = probs * len(drawn)
    return float(((torch.bincount(drawn, minlength=len(probs)) - expected) ** 2 / expected).sum())


def test_ids_follow_the_tempered_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1.5])
    count = 20_000
    uniform = torch.from_numpy(uniforms(5, count))
    for temperature in (1.0, 0.5, 2.0):
        sampler = Sampler([SamplingParams(temperature=temperature)] * count, CPU)
        ids, logprobs = sampler(logits.expand(count, -1), uniform)
        # 5 degrees of freedom: above 25.7 with probability 1e-4; the draws are fixed by the seed.
        assert chi_square(ids, (logits / temperature).softmax(0)) < 25.7
        assert torch.allclose(logprobs, logits.log_softmax(0)[ids])


def test_the_nucleus_is_sampled_by_its_own_distribution() -> None:
    probs = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])
    count = 20_000
    ids = invert_nucleus(probs.expand(count, -1), torch.full((count,), 0.7), torch.from_numpy(uniforms(6, count)))
    kept = torch.tensor([1, 3, 4])  # .4 + .25 < .7 ≤ .4 + .25 + .2
    assert set(ids.tolist()) == set(kept.tolist())
    place = torch.zeros(5, dtype=torch.long)
    place[kept] = torch.arange(3)
    # 2 degrees of freedom: above 18.4 with probability 1e-4.
    assert chi_square(place[ids], probs[kept] / probs[kept].sum()) < 18.4


def test_a_nucleus_wider_than_the_first_look() -> None:
    vocab = 40 * NUCLEUS_GROWTH
    probs = torch.full((2, vocab), 1 / vocab)
    uniform = torch.tensor([0.0, BELOW_ONE])
    for top_p in (0.25, 0.5, 0.999):
        ids = invert_nucleus(probs, torch.full((2,), top_p), uniform)
        assert ids[0] != ids[1]
    count = 4000
    for top_p in (0.5, 0.95):
        kept = top_p * vocab
        uniform = torch.from_numpy(uniforms(1, count))
        drawn = invert_nucleus(probs[:1].expand(count, -1), torch.full((count,), top_p), uniform)
        # How many of the kept ids are drawn at least once: the standard deviation is below 10.
        assert abs(len(set(drawn.tolist())) - kept * (1 - math.exp(-count / kept))) < 30


def test_rows_of_a_batch_keep_their_own_p_and_uniform() -> None:
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.32, 0.4, 0.28], [0.8, 0.2, 0.0], [0.25, 0.25, 0.5]])
    top_p, uniform = torch.tensor([0.5, 0.6, 0.9, 0.4]), torch.tensor([0.0, BELOW_ONE, 0.0, BELOW_ONE])
    assert invert_nucleus(probs, top_p, uniform).tolist() == [0, 0, 0, 2]
    assert invert_nucleus(probs, top_p, 1 - uniform).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("uniform", [0.0, 1e-30, 0.5, BELOW_ONE, 1.0])
def test_an_impossible_id_is_never_chosen(uniform: float) -> None:
    weights = torch.tensor([[0.0, 0.0, 1.0, 0.0, 2.0, 0.0, 0.0]])
    assert invert(weights, torch.tensor([uniform])).item() in (2, 4)
    assert invert(weights, torch.tensor([0.0])).item() == 2
    assert invert(weights, torch.tensor([1.0])).item() == 4


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40).filter(lambda w: sum(w) > 1e-30),
    top_p=st.floats(2**-20, 1, width=32),
    uniform=st.floats(0, 1, width=32),
)
def test_what_is_chosen_lies_in_the_smallest_set_that_reaches_p(
    weights: list[float], top_p: float, uniform: float
) -> None:
    probs = torch.tensor([weights])
    probs = probs / probs.sum()
    chosen = invert_nucleus(probs, torch.tensor([top_p]), torch.tensor([uniform])).item()
    above = probs[probs > probs[0, chosen]].sum().item()
    assert probs[0, chosen] > 0
    assert above < top_p + 1e-6


def test_a_batch_may_mix_greedy_truncated_and_plain_rows() -> None:
    logits = torch.tensor([1.0, 3.0, 2.9, 0.0]).expand(4, -1)
    params = [SamplingParams(temperature=0), SamplingParams(top_p=0.1), SamplingParams(), SamplingParams(top_p=0.7)]
    sampler = Sampler(params, CPU)
    ids, logprobs = sampler(logits, torch.full((4,), BELOW_ONE))
    assert ids.tolist() == [1, 1, 3, 2]
    assert torch.allclose(logprobs, logits[0].log_softmax(0)[ids])
    sampler.select(torch.tensor([3, 0]))
    assert sampler(logits[:2], torch.full((2,), BELOW_ONE))[0].tolist() == [2, 1]


def test_logprobs_of_half_precision_logits_are_float32() -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids, logprobs = Sampler([SamplingParams()], CPU)(logits, torch.tensor([0.3]))
    assert logprobs.dtype == torch.float32
    assert torch.equal(logprobs, logits.float().log_softmax(-1)[0, ids])


def test_a_stream_depends_on_its_seed_alone() -> None:
    assert uniforms(3, 5).tolist() == uniforms(3, 50)[:5].tolist()
    streams = [uniforms(seed, 4).tolist() for seed in (0, 1, 2, -1, 2**64, 2**200 + 7)]
    assert len({tuple(stream) for stream in streams}) == len(streams)
