"""Memory of a GPU: what there is, what keys and values may take of it, and what is given back."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from engines import WINDOW, make_model, prompts, run
from retcon.core.types import Sample
from retcon.engine.local import engine as local_engine
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.slabs import free_memory
from retcon.engine.types import SamplingParams
from retcon.models.devices import Computing
from retcon.models.placing import move_model
from retcon.train.kernels.forward import forwards

pytestmark = pytest.mark.torch
SLACK = 2**20
"""Bytes of small tensors that may come and go."""


@pytest.fixture(scope="module")
def model(device: str) -> Any:
    made = make_model("qwen3")
    move_model(made, device)
    return made


def allocated() -> int:
    gc.collect()
    return torch.cuda.memory_allocated()


def test_what_is_free_is_of_the_gpu(model: Any) -> None:
    total = torch.cuda.get_device_properties(model.device).total_memory
    assert 0 < free_memory(model.device) <= total - torch.cuda.memory_reserved()


@pytest.mark.filterwarnings("ignore::retcon.core.errors.ComputeWarning")  # nothing is left for the fused forward
def test_the_budget_is_what_requests_need_and_a_quarter_of_the_free_memory_at_most(model: Any) -> None:
    total = torch.cuda.get_device_properties(model.device).total_memory
    few, more, many, crowded = (
        LocalEngine(model, max_len=WINDOW, max_requests=requests, reserved=reserved).stats.kv_budget
        for requests, reserved in ((8, 0), (16, 0), (10**7, 0), (16, total))
    )
    assert more == 2 * few
    assert more < many <= total // 4
    assert crowded == few // 16, "one request at any rate"


@pytest.mark.parametrize("stay", [False, True], ids=["they are many", "they are few"])
def test_keys_and_values_are_given_back(model: Any, monkeypatch: pytest.MonkeyPatch, stay: bool) -> None:
    """Few of them stay while the engine is at rest, and no longer."""
    batch = prompts(1, [100] * 32)
    if not stay:
        monkeypatch.setattr(local_engine, "resting_bytes", lambda _: 0)

    async def main() -> None:
        engine = LocalEngine(model, max_len=WINDOW)
        params = SamplingParams(max_tokens=40)

        async def all_of_them() -> None:
            await asyncio.gather(*(engine.generate(str(i), ids, params) for i, ids in enumerate(batch)))

        await all_of_them()  # workspaces of kernels, once
        engine.invalidate()
        assert (engine.stats.kv_used > 0) is stay
        before = allocated() - engine.stats.kv_used
        for end, left in ((engine.invalidate, stay), (engine.close, False)):
            await all_of_them()
            used = engine.stats.kv_used
            assert used > 32 * 140 * 500
            assert allocated() >= before + used - SLACK
            end()
            assert engine.stats.kv_used == left * used
            assert abs(allocated() - before - left * used) <= SLACK

    run(main())


def peak(computing: Computing, *, vocabulary: int = 64, device: str) -> int:
    """Bytes at most, beyond what there is before, of an update of sixteen samples."""
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=6,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=32)  # fmt: skip
    trained = Qwen3ForCausalLM(config).eval()
    move_model(trained, device)
    draw = random.Random(0)
    ids = [tuple(draw.randrange(64) for _ in range(256)) for _ in range(16)]
    samples = [Sample(one, (0, *[1] * 255), (None, *[-1.0] * 255), (0,) * 256) for one in ids]
    for _ in range(2):  # the first one makes gradients and workspaces
        before = allocated()
        torch.cuda.reset_peak_memory_stats()
        with forwards(trained, samples, computing) as parts:
            for part in parts:
                (-part.logprobs.mean()).backward()
    return torch.cuda.max_memory_allocated() - before


def test_smaller_micro_batches_checkpoints_and_slices_take_less(device: str) -> None:
    whole = peak(Computing(micro_batch_tokens=4096), device=device)
    assert peak(Computing(micro_batch_tokens=512), device=device) < 0.5 * whole
    assert peak(Computing(micro_batch_tokens=4096, checkpointing=True), device=device) < 0.7 * whole
    wide = peak(Computing(micro_batch_tokens=4096), vocabulary=16_384, device=device)
    sliced = peak(Computing(micro_batch_tokens=4096, logits_chunk=2**20), vocabulary=16_384, device=device)
    assert sliced < wide - 2**25, "64 MiB of logits at once, and 4"


def test_bfloat16_takes_less_than_float32(device: str) -> None:
    wide = peak(Computing(micro_batch_tokens=4096), device=device)
    assert peak(Computing(micro_batch_tokens=4096, dtype="bfloat16"), device=device) < wide
