"""The vLLM engine of tests, over servers that speak vLLM's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from retcon.engine.types import SamplingParams
from retcon.engine.vllm.engine import VLLMEngine, VLLMSettings
from servers.answering import Server
from servers.speaking_vllm import TOKENIZER

GREEDY = SamplingParams(temperature=0, max_tokens=3)


def engine_of(*servers: Server, **about: Any) -> VLLMEngine:
    def model() -> Any:
        from engines import model_of

        return model_of("qwen3")

    urls = tuple(server.url.removesuffix("/v1") for server in servers)
    trained = about.pop("trained", False)
    return VLLMEngine(VLLMSettings(urls, **about), TOKENIZER, max_len=64, model=model, trained=trained)


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def connected(engine: VLLMEngine, work: Callable[[], Any]) -> Any:
    async with engine.connected():
        return await work()
