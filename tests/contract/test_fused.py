"""What the fused forward and its memory do in another way by size: the same is to come out."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import rms_norm

from engines import GREEDY, MAX_LEN, assert_exact, model_of, prompts, run
from ggufs import tiny
from retcon.engine.local import fused
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.fused import Norm, Product
from retcon.engine.types import Generation, SamplingParams

pytestmark = pytest.mark.torch
HOT = SamplingParams(max_tokens=20, seed=3)


@pytest.fixture(scope="module")
def qwen3() -> Any:
    return model_of("qwen3")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def generated(model: Any, texts: list[list[int]]) -> list[Generation]:
    async def main() -> list[Generation]:
        engine = LocalEngine(model, max_len=MAX_LEN)
        assert engine.decoding.startswith("the fused forward")
        assert engine.invariance.exact
        return await asyncio.gather(*(engine.generate(str(n), ids, HOT) for n, ids in enumerate(texts)))

    return run(main())


@pytest.mark.parametrize("small", [0, 2**17], ids=["packed", "torch's own"])
def test_with_either_product_a_request_gets_what_it_gets_alone(
    qwen3: Any, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "SMALL", small)
    texts = prompts(21, (3, 30, 9, 1, 17, 12, 5))
    together = generated(qwen3, texts)
    for ids, generation in zip(texts, together, strict=True):
        assert_exact(qwen3, ids, generation)
        assert generated(qwen3, [ids]) == [generation]


@pytest.mark.parametrize("small", [0, 2**17], ids=["packed", "torch's own"])
def test_new_weights_lie_where_the_old_ones_did(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded as a CUDA graph reads them there. Packed ones are no plain memory, and are made anew."""
    monkeypatch.setattr(fused, "SMALL", small)
    x, layers = torch.ones(3, 8), [torch.nn.Linear(8, out) for out in (4, 6)]
    product = Product(layers)
    assert product._packed is (fused.ONEDNN and not small)
    before = product._weight, product._bias
    with torch.inference_mode():
        for layer in layers:
            layer.weight.mul_(2)
            layer.bias.add_(1)
        product.refresh()
        assert torch.allclose(product(x), torch.cat([layer(x) for layer in layers], -1), atol=1e-5)
    assert product._bias is before[1]
    assert (product._weight is before[0]) is not product._packed


def test_biases_follow_the_weights() -> None:
    """As of Qwen2, whose queries, keys and values have some: they are laid side by side, too."""
    model = tiny("qwen2")
    (ids,) = prompts(22, (9,))

    async def main() -> None:
        engine = LocalEngine(model, max_len=MAX_LEN)
        assert engine.decoding.startswith("the fused forward")
        for _ in range(2):
            assert_exact(model, ids, await engine.generate("a", ids, GREEDY))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.add_(0.5 * name.endswith("bias"))
            engine.invalidate()

    run(main())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_torch_s_own_also_after_a_change_of_its_weights(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    x = (torch.randn(17, 6, 32, generator=draw) * 5).to(dtype)
    x[3] = 0
    module = torch.nn.RMSNorm(32, dtype=dtype)
    module.variance_epsilon = 1e-5
    other = copy.deepcopy(module)
    alone, side_by_side = Norm((module, None)), Norm((module, 4), (other, 2))
    for _ in range(2):
        first, second = (rms_norm(x.float(), (32,), m.weight.float(), 1e-5) for m in (module, other))
        close = {"atol": 1e-5} if dtype is torch.float32 else {"atol": 0.05, "rtol": 0.02}
        with torch.inference_mode():
            assert torch.allclose(alone(x).float(), first, **close)
            assert torch.allclose(side_by_side(x).float(), torch.cat([first[:, :4], second[:, 4:]], 1), **close)
        for m in (module, other):
            torch.nn.init.uniform_(m.weight, 0.5, 2, generator=draw)
        alone.refresh()
        side_by_side.refresh()
