"""Requests to inference servers that `real_model.py` compares with. Over HTTP on this machine, tokens for tokens, with
forced lengths and without seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from retcon.core.errors import RetconError


class Server(Protocol):
    """url: of its root. pid: its process, whose CPU time counts, with that of those below it."""

    @property
    def url(self) -> str: ...

    @property
    def pid(self) -> int: ...

    async def generate(self, client: httpx.AsyncClient, ids: Sequence[int], count: int) -> list[int]:
        """`count` tokens that continue `ids`."""
        ...


@dataclass(frozen=True, slots=True)
class Vllm:
    """A vLLM server, `--served-model-name small`."""

    url: str
    pid: int

    async def generate(self, client: httpx.AsyncClient, ids: Sequence[int], count: int) -> list[int]:
        answer = await self._complete(client, ids, count, {"logprobs": 0})
        return list(answer["token_ids"])

    async def score(self, client: httpx.AsyncClient, ids: Sequence[int]) -> int:
        """Log-probs of all `ids` but the first; how many there were."""
        return len((await self._complete(client, ids, 1, {"prompt_logprobs": 0}))["prompt_logprobs"]) - 1

    async def _complete(self, client: httpx.AsyncClient, ids: Sequence[int], count: int, more: dict[str, Any]) -> Any:
        body = {"model": "small", "prompt": list(ids), "max_tokens": count, "min_tokens": count, "ignore_eos": True,
                "temperature": 1.0, "return_token_ids": True, "add_special_tokens": False}  # fmt: skip
        answer = await client.post("/v1/completions", json=body | more)
        answer.raise_for_status()
        return answer.json()["choices"][0]


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp's server, with as many slots as there are requests. It gives no log-probs of a prompt."""

    url: str
    pid: int

    async def generate(self, client: httpx.AsyncClient, ids: Sequence[int], count: int) -> list[int]:
        body = {"prompt": list(ids), "n_predict": count, "ignore_eos": True, "temperature": 1.0, "top_k": 0,
                "top_p": 1.0, "min_p": 0.0, "cache_prompt": True, "return_tokens": True}  # fmt: skip
        answer = await client.post("/completion", json=body)
        answer.raise_for_status()
        tokens = list(answer.json()["tokens"])
        if len(tokens) != count:
            raise RetconError(f"{self.url} made {len(tokens)} of {count} tokens")
        return tokens


def all_at_once(server: Server, work: Sequence[Callable[[httpx.AsyncClient], Coroutine[Any, Any, object]]]) -> None:
    """Await all of `work`, each given one client of the server."""

    async def main() -> None:
        limits = httpx.Limits(max_connections=len(work))
        async with httpx.AsyncClient(base_url=server.url, timeout=3600, limits=limits, trust_env=False) as client:
            await asyncio.gather(*(one(client) for one in work))

    asyncio.run(main())


def decode(server: Server, prompts: Sequence[Sequence[int]], count: int) -> None:
    """`count` tokens for each of the prompts."""
    all_at_once(server, [lambda client, ids=ids: server.generate(client, ids, count) for ids in prompts])


def converse(
    server: Server, prompts: Sequence[Sequence[int]], shown: Sequence[Sequence[Sequence[int]]], count: int
) -> None:
    """For each prompt: `count` tokens a turn, after each of which those of `shown` follow."""

    async def one(client: httpx.AsyncClient, prompt: Sequence[int], turns: Sequence[Sequence[int]]) -> None:
        ids = list(prompt)
        for observation in turns:
            ids += [*await server.generate(client, ids, count), *observation]

    pairs = zip(prompts, shown, strict=True)
    all_at_once(server, [lambda client, p=prompt, t=turns: one(client, p, t) for prompt, turns in pairs])


def score(server: Vllm, texts: Sequence[Sequence[int]]) -> None:
    """Log-probs of the texts."""
    all_at_once(server, [lambda client, ids=ids: server.score(client, ids) for ids in texts])
