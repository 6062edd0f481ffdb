"""Phases of the local engine: who waits for whom."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines import GREEDY, MAX_LEN, assert_exact, model_of, prompts, run
from retcon.engine.local import LocalEngine
from retcon.engine.types import SamplingParams

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def qwen3() -> Any:
    return model_of("qwen3")


def test_a_release_lets_the_others_go_on_and_the_queue_move_up(qwen3: Any) -> None:
    batch = prompts(10, (5, 6, 7))

    async def main() -> None:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=2)
        tasks = [asyncio.create_task(engine.generate(f"r{i}", ids, GREEDY)) for i, ids in enumerate(batch)]
        await asyncio.gather(*tasks[:2])
        again = asyncio.create_task(engine.generate("r1", batch[1], GREEDY))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not tasks[2].done()  # two slots, both taken
        assert not again.done()  # r0 is open and does not wait
        await engine.release("r0")
        await engine.release("never seen")
        assert_exact(qwen3, batch[1], await again)
        assert_exact(qwen3, batch[2], await tasks[2])

    run(main())


def test_the_queue_moves_up_in_the_order_of_ids(qwen3: Any) -> None:
    answered: list[str] = []

    async def main() -> None:
        engine = LocalEngine(qwen3, max_len=MAX_LEN, max_requests=1)

        async def rollout(name: str) -> None:
            await engine.generate(name, [1, 2], SamplingParams(max_tokens=1))
            answered.append(name)
            await engine.release(name)

        await asyncio.gather(*map(rollout, "bdac"))

    run(main())
    assert answered == ["a", "b", "c", "d"]
