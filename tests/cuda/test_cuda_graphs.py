"""Forwards that are replayed as CUDA graphs: of every slab there was, after every change of the weights."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from engines import WINDOW, assert_exact, make_model, prompts, run
from retcon.engine.local import graphs
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import Generation, SamplingParams
from retcon.models.placing import move_model

pytestmark = pytest.mark.torch
LONG = SamplingParams(temperature=0, max_tokens=40)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each graph that is recorded, and each that is replayed counts in its place."""
    counts: list[int] = []

    class Counting(graphs.CudaRecorder):
        def __call__(self, run: Any) -> Any:
            replay, kept = super().__call__(run)
            counts.append(0)
            number = len(counts) - 1

            def counted() -> None:
                counts[number] += 1
                replay()

            return counted, kept

    monkeypatch.setattr("retcon.engine.local.engine.CudaRecorder", Counting)
    return counts


async def answers(engine: LocalEngine, name: str, batch: list[list[int]], apart: float = 0.0) -> list[Generation]:
    async def one(number: int, ids: list[int]) -> Generation:
        await asyncio.sleep(apart * number)
        answer = await engine.generate(f"{name} {number}", ids, LONG)
        await engine.release(f"{name} {number}")
        return answer

    return await asyncio.gather(*(one(number, ids) for number, ids in enumerate(batch)))


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
@pytest.mark.parametrize("kv_memory_mb", [0, 1], ids=["one class of slots", "many"])
def test_what_is_replayed_is_exact(device: str, recorded: list[int], name: str, kv_memory_mb: int) -> None:
    """Over many slabs, in a batch that grows and shrinks, and again once keys and values were given back."""
    model = make_model(name)
    move_model(model, device)
    batch = prompts(3, [2 + 9 * n % 70 for n in range(24)])

    async def main() -> None:
        engine = LocalEngine(model, max_len=WINDOW, max_requests=16, kv_memory_mb=kv_memory_mb)
        for round_ in range(3):
            for ids, answer in zip(batch, await answers(engine, str(round_), batch, 0.004), strict=True):
                assert_exact(model, ids, answer)
            engine.invalidate()
        assert "replayed as CUDA graphs" in engine.decoding

    run(main())
    assert sum(recorded) > 2 * len(recorded) > 0


def test_new_weights_are_what_is_replayed(device: str, recorded: list[int]) -> None:
    model = make_model("qwen3")
    move_model(model, device)
    batch = prompts(5, [20] * 6)

    async def main() -> None:
        engine = LocalEngine(model, max_len=WINDOW)
        before = await answers(engine, "before", batch)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        engine.invalidate()
        after = await answers(engine, "after", batch)
        assert [a.ids for a in after] != [b.ids for b in before]
        for ids, answer in zip(batch, after, strict=True):
            assert_exact(model, ids, answer)

    run(main())
    assert recorded


def test_training_beside_disturbs_no_recording(device: str, recorded: list[int]) -> None:
    """Another thread computes, allocates and frees all the while, as a training does with rl.max_staleness."""
    model, other = make_model("llama"), make_model("llama")
    move_model(model, device)
    move_model(other, device)
    batch = prompts(7, [12] * 8)

    def train() -> None:
        ids = torch.randint(10, (4, 64), device=device)
        for n in range(60):
            other(ids[:, : 8 + n % 50]).logits.float().logsumexp(-1).sum().backward()
            other.zero_grad(set_to_none=True)
            if n % 10 == 0:
                torch.cuda.empty_cache()

    async def main() -> None:
        engine = LocalEngine(model, max_len=WINDOW)
        training = asyncio.create_task(asyncio.to_thread(train))
        while not training.done():
            for ids, answer in zip(batch, await answers(engine, "a", batch), strict=True):
                assert_exact(model, ids, answer)
            engine.invalidate()
        await training
        assert "replayed as CUDA graphs" in engine.decoding

    run(main())
    assert recorded
