"""A model behind a URL: requests over HTTP that outlast faults of the way, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.http.asking import Answer, Connections, NoAnswer
from retcon.models.refusals import Said, plain, said_by

log = logging.getLogger(__name__)

LONGEST_WAIT = 30.0
RATIONED = 4
"""Times its patience that a request waits for a server that limits the rate and answers others."""
SMALLER = 3
"""Times that a request is made with fewer tokens, where the server does not take as many."""
USUAL_KEY = "OPENAI_API_KEY"
"""Environment variable of the key; unlike another one that is named, it need not be set."""


class Refused(EngineError):
    """A server does not take a request. said: in its words."""

    def __init__(self, message: str, said: Said) -> None:
        super().__init__(message)
        self.said = said


class Failed(InfrastructureFault):
    """A server gave up on a request, again and again. said: in its words."""

    def __init__(self, message: str, said: Said) -> None:
        super().__init__(message)
        self.said = said


class Unreadable(InfrastructureFault):
    """A server says yes and gives something else than was asked for."""


class TooLong(Refused):
    """A conversation leaves no room in the model's context."""


class _Lost(Exception):
    """A request that may be answered the next time. away: whether the server is not there for now. wait: seconds that
    it asks for. said: its words, where it gave any."""

    def __init__(self, why: str, *, away: bool, wait: float | None = None, said: Said | None = None) -> None:
        super().__init__(why)
        self.away, self.wait, self.said = away, wait, said


class Remote:
    """JSON to and from one server.

    who: names it in messages, such as `judge`. url: the API's base, such as http://127.0.0.1:8000/v1. key_env: the
    environment variable that holds the API's key, empty for none. seconds: wall seconds of a request. attempts:
    requests at most, where the way to the server fails. at_once: requests at a time. wait: seconds before the second
    request, doubled for each further one; where the server says how long to wait (Retry-After), that counts. patience:
    seconds for which a server that is not there (no connection, 429, 502 to 504) is asked beyond these attempts, since
    the request's first fault, or since the server last answered anyone, if that is longer ago. Where it limits the rate
    (429) and answers others, up to four times as long.

    A `url` may end in the path of chat completions, as it is often given, or in a query, which all requests carry.

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
        patience: float = 0.0,
    ) -> None:
        base, mark, query = url.partition("?")
        self.who, self.url = who, base.rstrip("/").removesuffix("/chat/completions")
        self._query = mark + query
        self._key_env = key_env
        self._key = os.environ.get(key_env, "").strip() if key_env else ""
        self._seconds, self._attempts, self._wait = seconds, attempts, wait
        self._room = asyncio.Semaphore(at_once)
        self._connections = Connections(self._key, proxies=True)
        self._lost_since: float | None = None
        self._warned: float | None = None
        self.patience = patience
        self.retried = 0

    async def get(self, path: str) -> Any:
        """What stands there. Raises as `post`."""
        return await self._ask("GET", path, None)

    async def post(
        self, path: str, body: Mapping[str, object], *, broken_off: Callable[[Any], str | None] = lambda _: None
    ) -> Any:
        """What the server answers.

        What went wrong on the way is tried again; what the server refuses is not, nor is an answer that is no JSON.
        broken_off: why an answer is not whole, which is a fault of the way too. Raises InfrastructureFault where the
        server stays away (Failed where it said something), Refused where it refuses; all name the URL and never the
        key.
        """
        return await self._ask("POST", path, body, broken_off)

    async def close(self) -> None:
        """Its connections end."""
        await self._connections.close()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        broken_off: Callable[[Any], str | None] = lambda _: None,
    ) -> Any:
        began: float | None = None
        async with self._room:
            for attempt in count(1):
                try:
                    found = await self._once(method, path, body, broken_off)
                except _Lost as lost:
                    fault = lost
                else:
                    self._lost_since = None
                    return found
                now = time.monotonic()
                began = began or now
                if fault.away:
                    self._lost_since = self._lost_since or now
                over, left = attempt >= self._attempts, self._left(fault, began, now)
                if over and left <= 0:
                    break
                wait = usual = min(LONGEST_WAIT, self._wait * 2 ** min(attempt - 1, 16))
                if fault.wait is not None:
                    wait = max(fault.wait, usual) if over else fault.wait
                    if wait > max(LONGEST_WAIT, left):
                        fault = _Lost(f"{fault} (it asks to wait {wait:.0f} seconds)", away=True, said=fault.said)
                        break
                elif over:
                    wait = min(wait, left)
                if over and (self._warned is None or now - self._warned > self.patience):
                    self._warned = now
                    log.warning("the %s at %s does not answer (%s); it is asked for another %.0f seconds",
                                self.who, self.url, fault, left)  # fmt: skip
                self.retried += 1
                await asyncio.sleep(wait)
        message = f"the {self.who} at {self.url} does not answer: {fault}"
        raise (InfrastructureFault(message) if fault.said is None else Failed(message, fault.said)) from fault

    def _left(self, fault: _Lost, began: float, now: float) -> float:
        """Seconds for which a request is still made whose first fault was at `began`, beyond its attempts. Where it is
        the rate that is limited, others that are answered are no sign against it; but it alone may be over the limit.
        """
        if not fault.away or self._lost_since is None:
            return 0.0
        if fault.said is not None and fault.said.status == 429:
            return min(self.patience - (now - self._lost_since), RATIONED * self.patience - (now - began))
        return self.patience - (now - min(began, self._lost_since))

    async def _once(
        self, method: str, path: str, body: Mapping[str, object] | None, broken_off: Callable[[Any], str | None]
    ) -> Any:
        """Raises _Lost where it may be answered the next time, Refused and InfrastructureFault where not."""
        query = self._query.replace("?", "&") if "?" in path else self._query
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._connections.ask(
                    method, f"{self.url}{path}{query}", body, seconds=self._seconds, headers=self._headers()
                )
        except TimeoutError as error:
            raise _Lost(f"no answer in {self._seconds:g} seconds (`seconds` says how long)", away=False) from error
        except NoAnswer as error:
            raise _Lost(str(error), away=not error.late) from error
        said = said_by(answer)
        if said is not None:
            why = f"status {said.status}: {self._without_key(said.text)}"
            if said.passes:
                raise _Lost(why, away=said.away, wait=_asked_to_wait(answer), said=said)
            raise Refused(f"the {self.who} at {self.url}: {why}{self._advice(said)}", said)
        try:
            found = answer.json() if answer.body else None
        except (ValueError, RecursionError) as error:
            if answer.body.lstrip()[:1] in (b"", b"{", b"["):  # without a length, an end is all that tells
                raise _Lost("its answer breaks off", away=False) from error
            raise self.no_answer(f"no JSON ({self._without_key(plain(answer.text))[:80]})") from error
        if (why_not := broken_off(found)) is not None:
            raise _Lost(why_not, away=False)
        return found

    def _headers(self) -> Mapping[str, str]:
        """Besides the usual one: keys of Azure's own API go by another name."""
        on_azure = (urlsplit(self.url).hostname or "").endswith(".azure.com")
        return {"api-key": self._key} if self._key and on_azure else {}

    def _advice(self, said: Said) -> str:
        """What to do about a refusal that the key stands behind."""
        if said.status not in (401, 403):
            return ""
        if self._key:
            return f"; the key that was sent is that of {self._key_env}: key_env names another variable"
        name = f": {self._key_env} is not set" if self._key_env else ""
        return f"; no key was sent{name}; key_env names the variable that holds it"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text

    def no_answer(self, what: str) -> Unreadable:
        """The fault of a server that says yes and gives something else than was asked for."""
        return Unreadable(f"the {self.who} at {self.url} gives {what}")


class RemoteModel(Remote):
    """One model of an OpenAI-compatible server: messages in, text out. See `Remote`."""

    def __init__(self, who: str, url: str, model: str, **about: Any) -> None:
        super().__init__(who, url, **about)
        self.model = model
        self._renamed: dict[str, str] = {}
        self._most: int | None = None
        self._left_out: set[str] = set()

    async def message(self, messages: Sequence[Mapping[str, object]], **params: object) -> dict[str, Any]:
        """The first choice: its `message`, `finish_reason` and what else the server tells of it; under `usage` the
        tokens that it counted. params: of the request, such as max_tokens and temperature; where the server takes no
        such max_tokens, or calls it otherwise, as many as it takes, and where it takes no temperature or top_p, without
        one that is 1, its default. Raises as `post`; TooLong, a Refused, where the messages leave no room."""
        answer = await self._completion({"model": self.model, "messages": list(messages), **params})
        try:
            choice = dict(answer["choices"][0])
            choice["message"] = dict(choice["message"])
        except (LookupError, TypeError, ValueError) as error:
            raise self.no_answer("no chat completion") from error
        finish = str(choice.get("finish_reason"))
        if finish.startswith("content_filter") or finish == "sensitive":  # Gemini's names the rule: `…: RECITATION`
            raise self.no_answer("an answer that its content filter has cut")
        if finish in ("model_length", "model_context_window_exceeded"):  # Mistral's, and Z.ai's as is `sensitive`
            choice["finish_reason"] = "length"
        usage = answer.get("usage")
        return {**choice, "usage": usage if isinstance(usage, dict) else {}}

    async def _completion(self, body: dict[str, object]) -> Any:
        smaller = 0
        without: set[str] = set()  # of this request; of others once it was answered so
        while True:
            if self._most is not None and isinstance(most := body.get("max_tokens"), int):
                body["max_tokens"] = min(most, self._most)
            sent = {
                self._renamed.get(key, key): value
                for key, value in body.items()
                if key not in self._left_out | without or value != 1
            }
            try:
                answer = await self.post("/chat/completions", sent, broken_off=_broken_off)
            except (Refused, Failed) as refused:
                said, most = refused.said, body.get("max_tokens")
                if said.wants_new_name and "max_tokens" in sent:  # others may have been told meanwhile
                    self._renamed = {"max_tokens": "max_completion_tokens"}
                    continue
                if (default := next((name for name in said.not_taken if sent.get(name) == 1), None)) is not None:
                    without.add(default)
                    continue
                if not said.asks_for_less:
                    raise
                room = said.room
                if isinstance(most, int) and smaller < SMALLER and (room is None or room > 0):
                    smaller += 1
                    if (bound := said.bound) is not None and bound < most:
                        self._most = bound
                    elif room is not None and room < most:
                        body["max_tokens"] = room
                    else:
                        del body["max_tokens"]  # it does not tell: as many as there is room for
                    continue
                if said.too_long:
                    raise TooLong(str(refused), said) from refused
                raise
            self._left_out |= without
            return answer

    async def chat(self, messages: Sequence[Mapping[str, object]], **params: object) -> str:
        """What the model says next. Raises as `heard`, and InfrastructureFault where its reasoning takes all tokens."""
        said, whole = await self.heard(messages, **params)
        if not said and not whole:
            raise self.no_answer("no text: max_tokens end before its reasoning does")
        return said

    async def heard(self, messages: Sequence[Mapping[str, object]], **params: object) -> tuple[str, bool]:
        """What the model says next, and whether it came to its end; "" where that is within its reasoning. Raises
        InfrastructureFault, also where the server refuses or gives no text."""
        try:
            choice = await self.message(messages, **params)
        except Refused as refused:
            raise InfrastructureFault(f"{refused}") from refused
        content, whole = choice["message"].get("content"), choice.get("finish_reason") != "length"
        if not content and not whole:
            return "", whole
        try:
            return text_of(content), whole
        except (LookupError, TypeError) as error:
            raise self.no_answer("no text") from error


def text_of(content: object) -> str:
    """A message's text; of one in parts (Mistral's, with reasoning among them), that of those that are text. Raises
    LookupError or TypeError for what is none."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part["type"] == "text")
    if not isinstance(content, str):
        raise TypeError(f"a {type(content).__name__} in place of a text")
    return content


def _broken_off(answer: Any) -> str | None:
    """Why a completion is not whole, through no fault of the model: SGLang's and vLLM's `abort` where they are paused
    or end, OpenRouter's `error` where the provider breaks off, DeepSeek's where it has no room, Z.ai's `network_error`.
    """
    if answer is None:
        return "its answer is empty"
    try:
        choice = answer["choices"][0]
        finish, error = choice.get("finish_reason"), choice.get("error")
    except (LookupError, TypeError, AttributeError):
        return None
    if finish not in ("abort", "error", "insufficient_system_resource", "network_error"):
        return None
    why = error.get("message") if isinstance(error, Mapping) else None
    return f"it broke the answer off ({finish}{f': {why}' if why else ''})"


def key_is_missing(key_env: str) -> bool:
    """Whether the variable that is to hold a key is named and not set; the usual one need not be."""
    return bool(key_env) and key_env != USUAL_KEY and key_env not in os.environ


def _asked_to_wait(answer: Answer) -> float | None:
    """Seconds by the header Retry-After, which says a number or a date; None where it says neither."""
    said = answer.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", said, re.ASCII):
        return float(said)
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a zone
        return None
