"""The local engine in bfloat16, on a CPU: what is computed in another way there gives the same, in any company."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from engines import make_model, plain, prompts, run
from retcon.engine.local import forward
from retcon.engine.local import slabs as scores
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.slabs import BLOCK, attend_by_products
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch
LENGTHS = (3 * BLOCK + 5, BLOCK, 40, 2 * BLOCK + 1)
LONGEST = max(LENGTHS) + 200
HOT = SamplingParams(temperature=1, max_tokens=30, seed=5)


@pytest.fixture(scope="module")
def wide() -> PreTrainedModel:
    """In float32."""
    model: PreTrainedModel = make_model("qwen3")
    model.config.max_position_embeddings = LONGEST  # its rotations are a function of the position
    return model


@pytest.fixture(scope="module")
def model(wide: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(wide).bfloat16()


def scored(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probs of each text but for its first id, all asked for at once."""

    async def main() -> list[list[float]]:
        engine = LocalEngine(model, max_len=LONGEST)
        return [list(x) for x in await asyncio.gather(*(engine.score(str(n), t, 1) for n, t in enumerate(texts)))]

    return run(main())


def generated(model: PreTrainedModel, starts: Sequence[Sequence[int]]) -> list[list[Generation]]:
    """Two turns of each, the second after some more ids; all at once."""

    async def one(engine: LocalEngine, name: str, ids: Sequence[int]) -> list[Generation]:
        first = await engine.generate(name, ids, HOT)
        return [first, await engine.generate(name, [*ids, *first.ids, *ids[:20]], HOT)]

    async def main() -> list[list[Generation]]:
        engine = LocalEngine(model, max_len=LONGEST)
        return await asyncio.gather(*(one(engine, str(n), ids) for n, ids in enumerate(starts)))

    return run(main())


def test_alone_and_in_company_a_request_gets_the_same_bits(model: PreTrainedModel) -> None:
    texts = prompts(1, LENGTHS)
    together, alone = scored(model, texts), [scored(model, [text])[0] for text in texts]
    for some, same in zip(together, alone, strict=True):
        assert some == pytest.approx(same, abs=0.5)  # on any CPU
    if LocalEngine(model, max_len=LONGEST).invariance.exact:
        assert together == alone
        assert generated(model, texts) == [generated(model, [text])[0] for text in texts]


def test_long_texts_score_as_in_float32_except_for_rounding(wide: PreTrainedModel, model: PreTrainedModel) -> None:
    for text, found in zip(texts := prompts(2, LENGTHS), scored(model, texts), strict=True):
        expected = torch.tensor(plain(wide, text, 1))
        rounded = torch.tensor(plain(model, text, 1))  # transformers' own forward in bfloat16
        ours, theirs = ((torch.tensor(found) - expected).abs().mean(), (rounded - expected).abs().mean())
        assert ours < 1.5 * theirs


def test_reading_keys_and_values_before_they_are_multiplied_changes_nothing(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = prompts(4, LENGTHS)
    expected = generated(model, texts)
    read = []
    warm = forward.DecodeJob._warm

    def noted(job: forward.DecodeJob, kept: torch.Tensor) -> None:
        read.append(job.cold)
        warm(job, kept)

    monkeypatch.setattr(forward.DecodeJob, "_warm", noted)
    assert generated(model, texts) == expected
    assert not any(read)  # so little stays in the cache
    monkeypatch.setattr(forward, "CACHE", 0)
    assert generated(model, texts) == expected
    assert any(read)


@pytest.mark.parametrize("together", [scores.SCORES, 1], ids=["rows together", "a row at a time"])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (6, 1)])
@pytest.mark.parametrize("masked", ["causal", "one mask", "a mask for each row"])
def test_attention_by_products_is_attention(
    masked: str, heads: tuple[int, int], together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "SCORES", together)
    for width in (1, BLOCK, 2 * BLOCK + 3):
        keys = width if masked == "causal" else width + 70
        torch.manual_seed(0)
        q = torch.randn(3, heads[0], width, 8, requires_grad=True)
        k, v = (torch.randn(3, heads[1], keys, size, requires_grad=True) for size in (8, 5))
        mask = None
        if masked != "causal":
            hidden = torch.rand(3 if "each" in masked else 1, 1, width, keys) < 0.5
            hidden[..., 0] = False
            mask = torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)
        found = attend_by_products(q, k, v, mask, 0.3)
        expected = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=0.3, enable_gqa=True
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        upstream = torch.randn_like(found)
        for ours, theirs in zip(*(torch.autograd.grad(x, (q, k, v), upstream) for x in (found, expected)), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
