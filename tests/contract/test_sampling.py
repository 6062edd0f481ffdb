"""Inverse-CDF sampling: its distribution, its edges, its random streams, and that no row sees the others."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engines import kept_ids
from retcon.engine.local.sampling import CELL, FEW, RANKED_GROWTH, RandomStream, Sampler, argmax, invert, make_rising
from retcon.engine.types import SamplingParams

pytestmark = pytest.mark.torch

CPU, aten = torch.device("cpu"), torch.ops.aten
BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1."""
KINDS = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_p=0.9),
    SamplingParams(top_p=0.95),
    SamplingParams(top_k=3),
    SamplingParams(top_k=40, min_p=0.02),
    SamplingParams(temperature=0.8, top_p=0.8, top_k=20, min_p=0.05),
)


def uniforms(seed: int, count: int) -> Tensor:
    stream = RandomStream(seed)
    return torch.tensor(stream.ahead(count))


def sample(params: Sequence[SamplingParams], logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return Sampler(params, CPU)(logits, uniform)


def chi_square(drawn: Tensor, probs: Tensor) -> float:
    """Pearson's statistic of drawn ids against probs (V,), over those that are possible."""
    expected = probs * len(drawn)
    counts = torch.bincount(drawn, minlength=len(probs))
    assert not counts[probs == 0].any()
    possible = probs > 0
    return float(((counts - expected)[possible] ** 2 / expected[possible]).sum())


LIMITS = {1: 0.0, 2: 15.1, 3: 18.4, 4: 21.1, 5: 23.5, 6: 25.7, 7: 27.9}
"""By number of kept ids: what Pearson's statistic passes with probability 1e-4. The draws are fixed by the seed."""


@pytest.mark.parametrize("params", KINDS[1:], ids=repr)
def test_ids_follow_the_tempered_truncated_distribution(params: SamplingParams) -> None:
    logits, count = torch.tensor([0.0, 1.0, 2.2, -1.0, 0.5, 1.5, -1.5]), 20_000
    ids, logprobs, sampling = sample([params] * count, logits.expand(count, -1), uniforms(5, count))
    kept = kept_ids(logits, params)
    expected = torch.zeros(len(logits))
    expected[kept] = (logits[kept] / params.temperature).softmax(0)
    assert set(ids.tolist()) == set(kept)
    assert chi_square(ids, expected) < LIMITS[len(kept)]
    assert torch.allclose(logprobs, logits.log_softmax(0)[ids])
    assert torch.allclose(sampling, expected.log()[ids], atol=1e-6)


def test_greedy_is_a_point_mass_whatever_else_is_set() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    for params in (KINDS[0], SamplingParams(temperature=1e-6, top_k=3, top_p=0.9, min_p=0.1)):
        ids, logprobs, sampling = sample([params], logits, torch.tensor([BELOW_ONE]))
        assert (ids.item(), sampling.item()) == (2, 0.0)
        assert torch.allclose(logprobs, logits[0].log_softmax(0)[2])


VOCABS = (5, CELL, CELL + 1, 3 * CELL, 2304, FEW + CELL + 1, 1 << 19)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", VOCABS)
def test_a_row_gets_the_same_bits_in_any_company(vocab: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(vocab)
    count = 3 * len(KINDS) if vocab < 10_000 else len(KINDS)
    # Some rows are peaked and some flat: truncation looks at more or fewer of their ids.
    spread = torch.linspace(0, 8, count)[:, None]
    logits = (spread * torch.randn(count, vocab, generator=draw)).to(dtype)
    params, uniform = [KINDS[i % len(KINDS)] for i in range(count)], torch.rand(count, generator=draw)
    whole = torch.stack([t.double() for t in sample(params, logits, uniform)])
    for row in range(count):
        alone = sample(params[row : row + 1], logits[row : row + 1], uniform[row : row + 1])
        assert torch.equal(torch.stack([t.double() for t in alone])[:, 0], whole[:, row]), params[row]
    for seed in range(6):
        some = random.Random(seed).sample(range(count), count // 2 + seed % 2)
        company = sample([params[i] for i in some], logits[some], uniform[some])
        assert torch.equal(torch.stack([t.double() for t in company]), whole[:, some])


@settings(max_examples=60, deadline=None)
@given(
    # Few different logits: equal ones are ranked by their ids.
    logits=st.lists(st.integers(-12, 12), min_size=1, max_size=150),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
    top_p=st.floats(0.05, 1),
    top_k=st.integers(0, 70),
    min_p=st.sampled_from([0.0, 0.001, 0.3, 1.0]),
    uniform=st.floats(0, 1, width=32),
)
def test_only_what_is_kept_is_ever_drawn(
    logits: list[int], temperature: float, top_p: float, top_k: int, min_p: float, uniform: float
) -> None:
    row, params = torch.tensor(logits) / 2, SamplingParams(temperature, top_p, top_k, min_p)
    ids, logprobs, sampling = sample([params], row[None], torch.tensor([uniform]))
    # An id at the very edge of p may fall on either side of it.
    kept = kept_ids(row, SamplingParams(temperature, min(1, top_p + 1e-5), top_k, min_p))
    least = kept_ids(row, SamplingParams(temperature, top_p - 1e-5, top_k, min_p))
    assert ids.item() in kept
    assert torch.allclose(logprobs, row.log_softmax(0)[ids], atol=1e-6)
    if kept == least:
        expected = (row[kept] / temperature).log_softmax(0)[kept.index(int(ids))]
        assert torch.allclose(sampling, expected, atol=1e-5)


@pytest.mark.parametrize("params", [KINDS[4], KINDS[6], SamplingParams(top_k=5, top_p=0.7)], ids=repr)
def test_the_probabilities_of_the_kept_ids_sum_to_one(params: SamplingParams) -> None:
    logits = 3 * torch.randn(1, 400, generator=torch.Generator().manual_seed(3))
    count = 5000
    ids, _, sampling = sample([params] * count, logits.expand(count, -1), torch.linspace(0, 1, count))
    probability = dict(zip(ids.tolist(), sampling.exp().tolist(), strict=True))
    assert set(probability) <= set(kept_ids(logits[0], params))
    assert sum(probability.values()) == pytest.approx(1, abs=2e-3)  # ids of less than 1 / count may be stepped over


def test_a_truncation_wider_than_the_first_looks() -> None:
    vocab, count = 40 * RANKED_GROWTH, 4000
    logits, uniform = torch.zeros(1, vocab).expand(count, -1), uniforms(1, count)
    for params in (SamplingParams(top_p=0.5), SamplingParams(top_k=640), SamplingParams(top_k=700, min_p=1.0)):
        kept = params.top_k or vocab // 2
        ids, _, sampling = sample([params] * count, logits, uniform)
        assert set(ids.tolist()) <= set(range(kept + 1))  # all are equally probable: the lowest are kept
        # How many of the kept ids are drawn at least once: the standard deviation is below 10.
        assert abs(len(set(ids.tolist())) - kept * (1 - math.exp(-count / kept))) < 30
        assert torch.allclose(sampling, torch.tensor(1 / kept).log(), atol=2e-3)


@pytest.mark.parametrize("top_k", [2**63, 10**400], ids=["beyond int64", "beyond float64"])
def test_a_top_k_beyond_any_number_of_ids_keeps_them_all(top_k: int) -> None:
    logits, count = torch.linspace(0, 1, 9).expand(500, -1), 500
    ids, logprobs, sampling = sample([SamplingParams(top_k=top_k)] * count, logits, uniforms(8, count))
    assert set(ids.tolist()) == set(range(9))
    assert torch.allclose(logprobs, sampling, atol=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1e-30, 0.5, BELOW_ONE, 1.0])
def test_an_impossible_id_is_never_chosen(uniform: float) -> None:
    for width in (7, CELL, 3 * CELL + 7, FEW + CELL, FEW + CELL + 7):
        weights = torch.zeros(1, width)
        weights[0, [2, width - 3]] = torch.tensor([1.0, 2.0])
        assert invert(weights, torch.tensor([uniform])).item() in (2, width - 3)
        assert invert(weights, torch.tensor([0.0])).item() == 2
        assert invert(weights, torch.tensor([1.0])).item() == width - 3


def test_sums_that_rounding_has_lifted_rise_at_no_weight_of_zero() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]])
    lifted, fallen = torch.tensor([[0.1, 1.0, 1.25, 2.0, 2.5]]), torch.tensor([[0.0, 1.0, 0.75, 0.75, 2.0]])
    assert make_rising(lifted, weights).tolist() == [[0.0, 1.0, 1.0, 2.0, 2.0]]
    assert make_rising(fallen, weights).tolist() == [[0.0, 1.0, 1.0, 1.0, 1.0]]
    assert torch.equal(make_rising(weights.cumsum(-1), weights), weights.cumsum(-1))


@pytest.mark.parametrize("vocab", VOCABS[:-1])
def test_argmax_is_the_lowest_of_equals(vocab: int) -> None:
    values = torch.randint(0, 4, (200, vocab), generator=torch.Generator().manual_seed(0)).float()
    assert argmax(values).tolist() == [row.index(max(row)) for row in values.tolist()]


def test_an_id_too_faint_for_float32_keeps_its_logprob() -> None:
    logits = torch.tensor([[0.0, 200.0]])
    _, logprobs, sampling = sample([SamplingParams(temperature=100)], logits, torch.tensor([0.0]))
    assert logprobs.item() == pytest.approx(-200)
    assert sampling.item() == pytest.approx(-2.126928, abs=1e-5)


@pytest.mark.parametrize("params", KINDS, ids=repr)
def test_nan_logits_are_nan_logprobs(params: SamplingParams) -> None:
    logits = torch.zeros(2, 300)
    logits[1, 7] = float("nan")
    ids, logprobs, sampling = sample([params] * 2, logits, torch.tensor([0.5, 0.5]))
    assert 0 <= ids[1] < 300
    assert logprobs.isnan().tolist() == sampling.isnan().tolist() == [False, True]


def test_a_stream_depends_on_its_seed_alone() -> None:
    assert uniforms(3, 5).tolist() == uniforms(3, 500)[:5].tolist()
    streams = [uniforms(seed, 4).tolist() for seed in (0, 1, 2, -1, 2**64, 2**200 + 7)]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    drawn = uniforms(8, 5000)
    assert 0 <= drawn.min() < 0.01 < 0.99 < drawn.max() <= 1
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.015)
