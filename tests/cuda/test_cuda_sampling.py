"""Sampling on a GPU: only what is kept is drawn, as often as it should be, and the log-probs are of it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engines import MAX_LEN, kept_ids, make_model, plain_logits, prompts, run
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.sampling import CELL, RandomStream, Sampler, argmax, invert
from retcon.engine.types import Generation, SamplingParams
from retcon.models.placing import move_model

pytestmark = pytest.mark.torch
KINDS = (
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=1.7, top_p=0.9),
    SamplingParams(top_k=3),
    SamplingParams(top_k=40, min_p=0.02),
    SamplingParams(temperature=0.8, top_p=0.8, top_k=20, min_p=0.05),
)
VOCABS = (5, CELL + 1, 2304, 151_936)
BELOW_ONE = 1 - 2**-24
"""The largest float32 below 1."""


def sample(params: SamplingParams, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of one row of logits (V,), for each of `uniform`."""
    rows = logits.expand(len(uniform), -1)
    return Sampler([params] * len(uniform), logits.device)(rows, uniform.to(logits.device))


def uniforms(seed: int, count: int) -> Tensor:
    return torch.tensor(RandomStream(seed).ahead(count))


@pytest.mark.parametrize("params", KINDS[1:], ids=repr)
def test_ids_follow_the_tempered_truncated_distribution(params: SamplingParams, device: str) -> None:
    logits = torch.tensor([0.0, 1.0, 2.2, -1.0, 0.5, 1.5, -1.5])
    ids, logprobs, sampling = (x.cpu() for x in sample(params, logits.to(device), uniforms(5, 20_000)))
    kept = kept_ids(logits, params)
    expected = torch.zeros(len(logits))
    expected[kept] = (logits[kept] / params.temperature).softmax(0)
    assert torch.allclose(ids.bincount(minlength=len(logits)) / 20_000, expected, atol=0.02)
    assert set(ids.tolist()) == set(kept)
    assert torch.allclose(logprobs, logits.log_softmax(0)[ids], atol=1e-5)
    assert torch.allclose(sampling, expected.log()[ids], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("vocab", VOCABS)
def test_the_draws_are_those_of_a_cpu_except_for_rounding(vocab: int, dtype: torch.dtype, device: str) -> None:
    draw = torch.Generator().manual_seed(vocab)
    count = 240
    logits = (torch.linspace(0, 8, count)[:, None] * torch.randn(count, vocab, generator=draw)).to(dtype)
    params, uniform = [KINDS[i % len(KINDS)] for i in range(count)], torch.rand(count, generator=draw)
    here = Sampler(params, torch.device("cpu"))(logits, uniform)
    there = [x.cpu() for x in Sampler(params, torch.device(device))(logits.to(device), uniform.to(device))]
    same = here[0] == there[0]
    assert same.float().mean() >= 0.97, "a uniform number that is next to a border may fall on either side"
    assert torch.allclose(here[1][same], there[1][same], atol=1e-4)
    assert torch.allclose(here[2][same], there[2][same], atol=1e-3)


@pytest.mark.parametrize("uniform", [0.0, 1e-30, 0.5, BELOW_ONE, 1.0])
def test_an_impossible_id_is_never_chosen(uniform: float, device: str) -> None:
    for width in (7, CELL, 3 * CELL + 7, 40_000):
        weights = torch.zeros(1, width, device=device)
        weights[0, [2, width - 3]] = torch.tensor([1.0, 2.0], device=device)
        assert invert(weights, torch.tensor([uniform], device=device)).item() in (2, width - 3)
        assert invert(weights, torch.tensor([1.0], device=device)).item() == width - 3


@pytest.mark.parametrize("vocab", VOCABS)
def test_argmax_is_the_lowest_of_equals(vocab: int, device: str) -> None:
    values = torch.randint(0, 4, (20, vocab), generator=torch.Generator().manual_seed(0)).float()
    assert argmax(values.to(device)).tolist() == [row.index(max(row)) for row in values.tolist()]


def test_nan_logits_are_nan_logprobs(device: str) -> None:
    logits = torch.zeros(len(KINDS), 300, device=device)
    logits[::2, 7] = float("nan")
    ids, logprobs, sampling = Sampler(KINDS, logits.device)(logits, torch.full((len(KINDS),), 0.5, device=device))
    assert all(0 <= i < 300 for i in ids.tolist())
    assert logprobs.isnan().tolist() == sampling.isnan().tolist() == [True, False] * (len(KINDS) // 2)


@pytest.mark.parametrize("params", KINDS[2:], ids=repr)
def test_an_engine_draws_what_the_parameters_keep(params: SamplingParams, device: str) -> None:
    """Of one prompt, many times at once; and the log-probs of some longer generations."""
    model: Any = make_model("qwen3")
    move_model(model, device)
    (ids,) = prompts(6, (8,))

    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=MAX_LEN, max_requests=400)
        calls = (
            engine.generate(str(s), ids, replace(params, max_tokens=1 if s > 3 else 20, seed=s)) for s in range(200)
        )
        return await asyncio.gather(*calls)

    generations = run(main())
    kept = kept_ids(plain_logits(model, ids)[-1], replace(params, top_p=min(1.0, params.top_p + 1e-4)))
    assert {g.ids[0] for g in generations} <= set(kept)
    for generation in generations[:4]:
        logits = plain_logits(model, [*ids, *generation.ids])[len(ids) - 1 : -1]
        expected = []
        for row, token in zip(logits, generation.ids, strict=True):
            of_row = kept_ids(row, params)
            tempered = (row[of_row].double() / params.temperature).softmax(0)
            expected.append(math.log(tempered[of_row.index(token)]))
        assert generation.sampling_logprobs == pytest.approx(expected, abs=1e-3)
