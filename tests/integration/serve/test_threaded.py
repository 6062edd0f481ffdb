"""An engine in a thread of its own: the server goes on beside a forward, and the model says what it says without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

import httpx

from engines import MAX_LEN, TOKENIZER, model_of, prompts
from retcon.chat.tokenizer import ByteTokenizer
from retcon.core.errors import EngineError
from retcon.engine.kinds.scripted import ScriptedEngine
from retcon.engine.types import Generation, Generator, SamplingParams
from retcon.serve.agent import ThreadedEngine
from servers.agent import MODEL, context_of, serving, user

PATIENCE = 60.0
"""Seconds after which a test has failed."""


class Forward(ScriptedEngine):
    """Its forward ends when it is told to, and its event loop does not turn meanwhile."""

    def __init__(self) -> None:
        super().__init__(ByteTokenizer(), ["It is 42."])
        self.runs, self.end = threading.Event(), threading.Event()
        self.threads: set[str] = set()
        self.aside: list[str] = []

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        self.threads.add(threading.current_thread().name)
        self.runs.set()
        if not self.end.wait(PATIENCE):
            raise EngineError("nobody was attended to while a forward ran")
        return await super().generate(request_id, ids, params)

    def set_aside(self, request_id: str) -> None:
        self.aside.append(request_id)


def test_health_is_answered_while_a_forward_runs() -> None:
    async def main() -> None:
        forward = Forward()
        async with (
            ThreadedEngine(forward) as engine,
            serving(context_of(engine)) as url,
            httpx.AsyncClient(base_url=url, timeout=2 * PATIENCE) as http,
        ):
            body = {"model": MODEL, "messages": [user("6 times 7?")]}
            asking = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
            assert await asyncio.to_thread(forward.runs.wait, PATIENCE)
            assert (await http.get("/health")).json()["running"] == 1
            assert not asking.done()
            forward.end.set()
            answer = await asking
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"] == "It is 42."
        assert forward.threads == {"retcon-engine"}
        assert len(forward.aside) == 1
        assert forward.released == forward.aside, "when its conversation is over"

    asyncio.run(asyncio.wait_for(main(), 3 * PATIENCE))


@pytest.mark.torch
def test_a_model_gives_the_same_bits_as_in_its_callers_thread() -> None:
    pytest.importorskip("torch", reason="a model here needs the [train] extra")
    from retcon.engine.local.engine import LocalEngine

    asked = prompts(3, [5, 17, 40, 40, 9])
    sampled = SamplingParams(max_tokens=15, seed=7)

    async def answers(engine: Generator) -> list[object]:
        async def one(n: int, ids: Sequence[int]) -> object:
            first = await engine.generate(f"r{n}", ids, sampled)
            history = [*ids, *first.ids]
            scores = await engine.score(f"r{n}", history, len(ids))
            return first, scores, await engine.generate(f"r{n}", history[:-3], sampled)

        return await asyncio.gather(*(one(n, ids) for n, ids in enumerate(asked)))

    async def here() -> list[object]:
        async with LocalEngine(model_of("qwen3"), max_len=MAX_LEN, tokenizer=TOKENIZER) as engine:
            return await answers(engine)

    async def there() -> list[object]:
        async with ThreadedEngine(LocalEngine(model_of("qwen3"), max_len=MAX_LEN, tokenizer=TOKENIZER)) as engine:
            with pytest.raises(EngineError, match=r"request long: .* leave no room"):
                await engine.generate("long", [1] * MAX_LEN, sampled)
            return await answers(engine)

    assert asyncio.run(here()) == asyncio.run(there())
