"""OpenAI's own client through `retcon serve-agent`: `make integration`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("openai", reason="the client, which `make integration` installs")

import openai
from endpoints import endpoint, written

from playing import call
from servers.agent import MODEL, SEARCH

pytestmark = pytest.mark.filterwarnings("default")  # the client's own


def replying(_: str, text: str, n: int) -> str:
    """To `number 7`: a program that fails, its fix, and an answer; or a call of the client's own tool."""
    number = text.rpartition("number ")[2].split("<", maxsplit=1)[0]
    return [call(f"print(x, {number})"), call(f"print(7, {number})"), f"It was {number}."][min(n, 2)]


def searching(_: str, text: str, n: int) -> str:
    return "Found it." if "<tool_response>" in text or "Observation" in text else written("it")


def test_openais_client_chats_with_64_at_once() -> None:
    async def main(url: str) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            assert [model.id async for model in client.models.list()] == [MODEL, f"{MODEL}:chat"]
            ask = client.chat.completions.create
            return await asyncio.gather(
                *(ask(model=MODEL, messages=[{"role": "user", "content": f"number {n}"}]) for n in range(64))
            )

    with endpoint(replying) as (url, _):
        answers = asyncio.run(main(url))
    assert [answer.choices[0].message.content for answer in answers] == [f"It was {n}." for n in range(64)]
    assert [len(answer.retcon["repairs"]) for answer in answers] == [1] * 64
    assert all(answer.usage.total_tokens > 0 and answer.choices[0].finish_reason == "stop" for answer in answers)


def test_openais_client_streams_64_at_once() -> None:
    async def one(client: openai.AsyncOpenAI, n: int) -> tuple[str, int]:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"number {n}"}], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        text, tokens = "", 0
        async for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return text, tokens

    async def main(url: str) -> list[tuple[str, int]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            return await asyncio.gather(*(one(client, n) for n in range(64)))

    with endpoint(replying) as (url, _):
        found = asyncio.run(main(url))
    assert [text for text, _ in found] == [f"It was {n}." for n in range(64)]
    assert all(tokens > 10 for _, tokens in found)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_runs_tools_of_its_own(stream: bool) -> None:
    with endpoint(searching, style="hermes") as (url, _), openai.OpenAI(base_url=url, api_key="none") as client:
        told: list[Any] = [{"role": "user", "content": "Who?"}]
        about: dict[str, Any] = {"model": MODEL, "tools": [SEARCH], "tool_choice": "auto"}
        if stream:
            with client.chat.completions.stream(messages=told, **about) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(messages=told, **about).choices[0].message
        (made,) = message.tool_calls or ()
        assert json.loads(made.function.arguments) == {"query": "it"}
        told += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": made.id, "content": "Ada"}]
        answer = client.chat.completions.create(messages=told, **about)
    assert answer.choices[0].message.content == "Found it."
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens


def test_openais_client_knows_the_errors() -> None:
    replies = [ConnectionError("gone"), "Yes."]
    with endpoint(replies, token="secret") as (url, _):
        ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Go."}]}
        with openai.OpenAI(base_url=url, api_key="other") as client, pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(**ask)
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError) as wrong:
                client.chat.completions.create(**ask, n=3)
            assert (wrong.value.param, wrong.value.type) == ("n", "invalid_request_error")
            with pytest.raises(openai.NotFoundError) as unknown:
                client.chat.completions.create(**{**ask, "model": "smal"})
            assert unknown.value.code == "model_not_found"
            with pytest.raises(openai.InternalServerError) as lost:
                client.chat.completions.create(**ask)
            assert (lost.value.status_code, lost.value.code) == (503, "unavailable")
