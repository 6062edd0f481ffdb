"""A model behind an OpenAI-compatible URL: messages in, text out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from retcon.core.errors import InfrastructureFault

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that say nothing about the request."""
LONGEST_WAIT = 30.0
USUAL_KEY = "OPENAI_API_KEY"
"""Environment variable of the key; unlike another one that is named, it need not be set."""


class RemoteModel:
    """One model of one server.

    who: names it in messages, such as `judge`. url: the API's base, such as http://127.0.0.1:8000/v1. key_env: the
    environment variable that holds the API's key, empty for none. seconds: wall seconds of a request. attempts:
    requests at most, where the way to the server fails. at_once: requests at a time. wait: seconds before the second
    request, doubled for each further one. Use `close` in the end.
    """

    def __init__(
        self,
        who: str,
        url: str,
        model: str,
        *,
        key_env: str = USUAL_KEY,
        seconds: float = 120.0,
        attempts: int = 4,
        at_once: int = 16,
        wait: float = 0.5,
    ) -> None:
        self.who, self.url, self.model = who, url.rstrip("/"), model
        self._key = os.environ.get(key_env, "") if key_env else ""
        self._seconds, self._attempts, self._wait = seconds, attempts, wait
        self._room = asyncio.Semaphore(at_once)
        self._client = httpx.AsyncClient(
            timeout=seconds, headers={"Authorization": f"Bearer {self._key}"} if self._key else None
        )

    async def chat(self, messages: Sequence[Mapping[str, str]], **params: object) -> str:
        """What the model says next. params: of the request, such as max_tokens and temperature.

        What went wrong on the way is tried again; what the server refuses is not. Raises InfrastructureFault, which
        names the URL and never the key.
        """
        body = {"model": self.model, "messages": list(messages), **params}
        why = ""
        async with self._room:
            for attempt in range(self._attempts):
                if attempt:
                    await asyncio.sleep(min(LONGEST_WAIT, self._wait * 2 ** (attempt - 1)))
                try:
                    async with asyncio.timeout(self._seconds):
                        answer = await self._client.post(f"{self.url}/chat/completions", json=body)
                except (httpx.TransportError, TimeoutError) as error:
                    why = f"{type(error).__name__}: {error}"
                    continue
                if answer.is_success:
                    return self._content(answer)
                why = f"status {answer.status_code}: {self._without_key(answer.text)[:200]}"
                if answer.status_code not in AGAIN:
                    break
        raise InfrastructureFault(f"the {self.who} at {self.url} does not answer: {why}")

    async def close(self) -> None:
        """Its connections end."""
        await self._client.aclose()

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text

    def _content(self, answer: httpx.Response) -> str:
        try:
            content: Any = answer.json()["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError) as error:
            raise InfrastructureFault(
                f"the {self.who}'s answer is no chat completion: {type(error).__name__}"
            ) from None
        if not isinstance(content, str):
            raise InfrastructureFault(f"the {self.who}'s answer has no text")
        return content


def key_is_missing(key_env: str) -> bool:
    """Whether the variable that is to hold a key is named and not set; the usual one need not be."""
    return bool(key_env) and key_env != USUAL_KEY and key_env not in os.environ
