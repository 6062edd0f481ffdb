"""The endpoint before servers that speak the protocols of vLLM, in ids, and of chat completions, in messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest

pytest.importorskip("starlette", reason="serving needs the [serve] extra")

from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.engine.openai.engine import OpenAIEngine, OpenAISettings
from retcon.engine.openai.messages import SurrogateTokenizer
from retcon.engine.vllm.engine import VLLMEngine, VLLMSettings
from retcon.rollout.context import RolloutLimits
from servers import answering
from servers.agent import MODEL, Message, context_of, said, serving, user
from servers.speaking_vllm import TOKENIZER, VLLM, tokens_asked


def never() -> Any:
    raise AssertionError("nothing here has weights")


def test_a_conversation_that_the_server_has_no_room_for_is_refused_as_it_refuses_it() -> None:
    long = answering.Answer({"error": {"message": "8 tokens too many", "code": "context_length_exceeded"}}, 400)

    async def main(server: answering.Server) -> None:
        standin = SurrogateTokenizer(ByteTokenizer(), "bytes")
        engine = OpenAIEngine(OpenAISettings(server.url, attempts=1), standin)
        context = replace(context_of(engine), chat=Chat(standin, style="retcon.engine.openai.messages:NATIVE"))
        async with engine.connected(), serving(context) as url, httpx.AsyncClient(base_url=url, timeout=120) as http:
            body = {"model": MODEL, "messages": [user("What is it?")]}
            refused = await http.post("/v1/chat/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
            assert "8 tokens too many" in refused.json()["error"]["message"]

    with answering.serving(lambda _: long) as server:
        asyncio.run(asyncio.wait_for(main(server), 300))


def test_a_conversation_goes_on_in_ids_and_a_lost_server_is_a_503() -> None:
    vllm = VLLM(about={"max_model_len": 4000})

    async def main(server: answering.Server) -> None:
        settings = VLLMSettings((server.url.removesuffix("/v1"),), patience=0.2)
        engine = VLLMEngine(settings, TOKENIZER, max_len=4000, model=never)
        limits = RolloutLimits(max_tokens=3000, max_turns=3)
        async with (
            engine.connected(),
            serving(context_of(engine, limits=limits)) as url,
            httpx.AsyncClient(base_url=url, timeout=120) as http,
        ):
            body: dict[str, Any] = {"model": MODEL, "max_tokens": 4}
            told: list[Message] = [user("Go.")]
            first = (await http.post("/v1/chat/completions", json=body | {"messages": told})).json()
            told += [said(first), user("On.")]
            vllm.down = True
            lost = await http.post("/v1/chat/completions", json=body | {"messages": told})
            assert (lost.status_code, lost.json()["error"]["code"]) == (503, "unavailable")
            vllm.down = False
            second = (await http.post("/v1/chat/completions", json=body | {"messages": told})).json()
            assert second["retcon"]["session"] == first["retcon"]["session"]
            before, after = (asked["token_ids"] for asked in (tokens_asked(server)[0], tokens_asked(server)[-1]))
            assert after[: len(before) + 4] == [*before, *[before[-1]] * 4]
            lines = await http.get(f"/v1/sessions/{first['retcon']['session']}/trajectories")
            assert lines.text.count('"logprobs":[') == 2

    with answering.serving(vllm, models=()) as server:
        asyncio.run(asyncio.wait_for(main(server), 300))
