"""A model behind a URL: requests over HTTP that outlast faults of the way, and nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.http.asking import Answer, Connections, NoAnswer

AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that say nothing about the request."""
LONGEST_WAIT = 30.0
USUAL_KEY = "OPENAI_API_KEY"
"""Environment variable of the key; unlike another one that is named, it need not be set."""


class Refused(EngineError):
    """A server does not take a request. status: of HTTP. code: what an OpenAI-compatible server calls it, or None."""

    def __init__(self, message: str, status: int, code: str | None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Remote:
    """JSON to and from one server.

    who: names it in messages, such as `judge`. url: the API's base, such as http://127.0.0.1:8000/v1. key_env: the
    environment variable that holds the API's key, empty for none. seconds: wall seconds of a request. attempts:
    requests at most, where the way to the server fails. at_once: requests at a time. wait: seconds before the second
    request, doubled for each further one; where the server says how long to wait (Retry-After), that counts.

    Of one event loop; use `close` in the end. A caller that is cancelled closes its connection, by which servers know
    that nobody waits any more.
    """

    def __init__(
        self,
        who: str,
        url: str,
        *,
        key_env: str = USUAL_KEY,
        seconds: float = 120.0,
        attempts: int = 4,
        at_once: int = 16,
        wait: float = 0.5,
    ) -> None:
        self.who, self.url = who, url.rstrip("/")
        self._key = os.environ.get(key_env, "") if key_env else ""
        self._seconds, self._attempts, self._wait = seconds, attempts, wait
        self._room = asyncio.Semaphore(at_once)
        self._connections = Connections(self._key, proxies=True)
        self.retried = 0

    async def get(self, path: str) -> Any:
        """What stands there. Raises as `post`."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: Mapping[str, object]) -> Any:
        """What the server answers.

        What went wrong on the way is tried again; what the server refuses is not, nor is an answer that is no JSON.
        Raises InfrastructureFault where the server stays away, Refused where it refuses; both name the URL and never
        the key.
        """
        return await self._ask("POST", path, body)

    async def close(self) -> None:
        """Its connections end."""
        await self._connections.close()

    async def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> Any:
        why, wait = "", 0.0
        async with self._room:
            for attempt in range(self._attempts):
                if attempt:
                    self.retried += 1
                    await asyncio.sleep(wait)
                wait = min(LONGEST_WAIT, self._wait * 2**attempt)
                try:
                    async with asyncio.timeout(self._seconds):
                        answer = await self._connections.ask(method, f"{self.url}{path}", body, seconds=self._seconds)
                except TimeoutError:
                    why = f"no answer in {self._seconds:g} seconds"
                    continue
                except NoAnswer as error:
                    why = str(error)
                    continue
                if answer.ok:
                    return self._read(answer)
                why = f"status {answer.status}: {self._without_key(answer.text)[:200]}"
                if answer.status not in AGAIN:
                    raise Refused(f"the {self.who} at {self.url}: {why}", answer.status, _code(answer))
                wait = _asked_to_wait(answer, wait)
                if wait > LONGEST_WAIT:
                    why += f" (it asks to wait {wait:.0f} seconds)"
                    break
        raise InfrastructureFault(f"the {self.who} at {self.url} does not answer: {why}")

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text

    def _read(self, answer: Answer) -> Any:
        try:
            return answer.json() if answer.body else None
        except ValueError as error:
            raise self.no_answer("no JSON") from error

    def no_answer(self, what: str) -> InfrastructureFault:
        """The fault of a server that says yes and gives something else than was asked for."""
        return InfrastructureFault(f"the {self.who} at {self.url} gives {what}")


class RemoteModel(Remote):
    """One model of an OpenAI-compatible server: messages in, text out. See `Remote`."""

    def __init__(self, who: str, url: str, model: str, **about: Any) -> None:
        super().__init__(who, url, **about)
        self.model = model

    async def message(self, messages: Sequence[Mapping[str, object]], **params: object) -> dict[str, Any]:
        """The first choice: its `message`, `finish_reason` and what else the server tells of it; under `usage` the
        tokens that it counted. params: of the request, such as max_tokens and temperature. Raises as `post`."""
        answer = await self.post("/chat/completions", {"model": self.model, "messages": list(messages), **params})
        try:
            choice = dict(answer["choices"][0])
            choice["message"] = dict(choice["message"])
        except (LookupError, TypeError, ValueError) as error:
            raise self.no_answer("no chat completion") from error
        usage = answer.get("usage")
        return {**choice, "usage": usage if isinstance(usage, dict) else {}}

    async def chat(self, messages: Sequence[Mapping[str, object]], **params: object) -> str:
        """What the model says next. Raises InfrastructureFault, also where the server refuses or gives no text."""
        try:
            content = (await self.message(messages, **params))["message"].get("content")
        except Refused as refused:
            raise InfrastructureFault(f"{refused}") from refused
        if not isinstance(content, str):
            raise self.no_answer("no text")
        return content


def key_is_missing(key_env: str) -> bool:
    """Whether the variable that is to hold a key is named and not set; the usual one need not be."""
    return bool(key_env) and key_env != USUAL_KEY and key_env not in os.environ


def _asked_to_wait(answer: Answer, usual: float) -> float:
    """Seconds by the header Retry-After, which says a number or a date; `usual` where it says neither."""
    said = answer.headers.get("Retry-After", "").strip()
    if said.isdecimal():
        return float(said)
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a zone
        return usual


def _code(answer: Answer) -> str | None:
    try:
        error = answer.json()["error"]
        code = error.get("code") or error.get("type")
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return code if isinstance(code, str) else None
