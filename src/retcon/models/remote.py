"""HTTP client for a model server: JSON requests with retries, and chat completions.

Errors are classified by HTTP status and by the `code` or `type` of OpenAI's error object, which most servers send. An
unknown error ends a request as an infrastructure fault or an error of the set-up, never as a fault of the model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.http.client import ConnectionFailed, HttpClient, HttpResponse

log = logging.getLogger(__name__)

LONGEST_WAIT = 30.0
RATE_LIMIT_PATIENCE = 4
"""Times its patience that a request waits for a server that limits its rate and answers other requests."""
DEFAULT_KEY_ENV = "OPENAI_API_KEY"
"""Environment variable of the API key. Unlike one that a recipe names, it need not be set."""
SHOWN = 400
"""Characters of a server's message that an error repeats."""
_RETRYABLE = frozenset({408, 409, 425, 429})
_PERMANENT = frozenset({501, 505})
_UNAVAILABLE = frozenset({429, 502, 503, 504, *range(520, 531)})
_QUOTA = frozenset(
    {"insufficient_quota", "exceeded_current_quota_error", "billing_hard_limit_reached", "billing_not_active"}
)
_FILTERED = frozenset({"content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation"})
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_TOO_LONG_WORDS = re.compile(r"context (length|size|window|limit)|(prompt|input) is too long", re.IGNORECASE)
"""For servers that send no code: vLLM, SGLang, Anthropic's API."""
_MAX_TOKENS = re.compile(r"\bmax_\w*tokens\b")
_DEFAULTS = {"temperature": 1, "top_p": 1}
"""Parameters that some models do not take, and the API's defaults, at which they can be left out."""
_BROKEN_OFF = frozenset({"abort", "error", "insufficient_system_resource", "network_error"})
"""Finish reasons of answers that a server did not complete: SGLang's and vLLM's, OpenRouter's, DeepSeek's, Z.ai's."""
_CONTEXT_FULL = frozenset({"model_length", "model_context_window_exceeded"})
"""Mistral's and Z.ai's finish reasons for `length`."""
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerError:
    """An error response. status: of HTTP, or the one in the body of a response with status 200."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None

    @property
    def retryable(self) -> bool:
        """Whether the request may succeed if it is repeated."""
        if self.code in _QUOTA:
            return False
        return self.status in _RETRYABLE or (self.status >= 500 and self.status not in _PERMANENT)

    @property
    def unavailable(self) -> bool:
        """Whether the server or its proxy takes no requests for now."""
        return self.retryable and self.status in _UNAVAILABLE

    @property
    def filtered(self) -> bool:
        """Whether a content filter refused the request."""
        return self.code in _FILTERED

    @property
    def too_long(self) -> bool:
        """Whether the messages, alone or with `max_tokens`, exceed the model's context."""
        described = self.status in (400, 413, 422) and bool(_TOO_LONG_WORDS.search(self.message))
        return self.code in _TOO_LONG or described

    def names(self, parameter: str) -> bool:
        """Return whether the server refused the request and mentions the parameter."""
        if self.status not in (400, 422):
            return False
        if parameter == "max_tokens" and _MAX_TOKENS.search(f"{self.param} {self.message}"):
            return True
        return self.param == parameter or bool(re.search(rf"\b{parameter}\b", self.message))


class RequestRefused(EngineError):
    """The server does not accept a request."""

    def __init__(self, message: str, error: ServerError) -> None:
        super().__init__(message)
        self.error = error


class ContextExceeded(RequestRefused):
    """The messages leave no room in the model's context."""


class ServerFailed(InfrastructureFault):
    """The server failed on a request, and on its repetitions."""

    def __init__(self, message: str, error: ServerError) -> None:
        super().__init__(message)
        self.error = error


class BadResponse(InfrastructureFault):
    """The server reported success without the requested content."""


class _Retryable(Exception):
    """A failed attempt. unavailable: the server takes no requests for now. wait: seconds until it wants the next."""

    def __init__(
        self, why: str, *, unavailable: bool, wait: float | None = None, error: ServerError | None = None
    ) -> None:
        super().__init__(why)
        self.unavailable, self.wait, self.error = unavailable, wait, error


class JsonClient:
    """JSON requests to one server, with retries.

    Belongs to one event loop; call `close` at the end. Cancelling a request closes its connection, which lets servers
    drop it.

    Args:
        role: names the server in messages, such as `judge`.
        url: the API's base, such as http://127.0.0.1:8000/v1. A trailing /chat/completions is dropped; a query is sent
            with every request.
        key_env: environment variable of the API key; empty for none.
        seconds: wall seconds of one attempt.
        attempts: most attempts at a request.
        at_once: concurrent requests.
        wait: seconds before the second attempt, doubled for each further one; the server's Retry-After wins.
        patience: seconds beyond these attempts that an unavailable server (no connection, 429, 502 to 504) is retried,
            since the request's first fault, or since the server's last answer if that is longer ago. A server that
            answers others and limits the rate (429) is retried up to four times as long.
    """

    def __init__(
        self,
        role: str,
        url: str,
        *,
        key_env: str = DEFAULT_KEY_ENV,
        seconds: float = 120.0,
        attempts: int = 4,
        at_once: int = 16,
        wait: float = 0.5,
        patience: float = 0.0,
    ) -> None:
        base, mark, query = url.partition("?")
        self.role, self.url = role, base.rstrip("/").removesuffix("/chat/completions")
        self._query = mark + query
        self._key_env = key_env
        self._key = os.environ.get(key_env, "").strip() if key_env else ""
        self._seconds, self._attempts, self._wait = seconds, attempts, wait
        self._slots = asyncio.Semaphore(at_once)
        self._http = HttpClient(self._key, proxies=True)
        self._unavailable_since: float | None = None
        self._warned: float | None = None
        self.patience = patience
        self.retried = 0

    async def get(self, path: str) -> Any:
        """Return the JSON at `path`. Raises what `post` raises."""
        return await self._request("GET", path, None)

    async def post(
        self, path: str, body: Mapping[str, object], *, incomplete: Callable[[Any], str | None] = lambda _: None
    ) -> Any:
        """Return the server's JSON response. Errors name the URL, never the key.

        Args:
            incomplete: why a response must be requested again, None if it is complete.

        Raises:
            RequestRefused: the server refuses the request.
            InfrastructureFault: it cannot be reached, keeps failing (ServerFailed) or sends no JSON (BadResponse).
        """
        return await self._request("POST", path, body, incomplete)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.close()

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None,
        incomplete: Callable[[Any], str | None] = lambda _: None,
    ) -> Any:
        began: float | None = None
        async with self._slots:
            for attempt in count(1):
                try:
                    found = await self._attempt(method, path, body, incomplete)
                except _Retryable as error:
                    fault = error
                else:
                    self._unavailable_since = None
                    return found
                now = time.monotonic()
                began = began or now
                if fault.unavailable:
                    self._unavailable_since = self._unavailable_since or now
                over, left = attempt >= self._attempts, self._patience_left(fault, began, now)
                if over and left <= 0:
                    break
                wait = usual = min(LONGEST_WAIT, self._wait * 2 ** min(attempt - 1, 16))
                if fault.wait is not None:
                    wait = max(fault.wait, usual) if over else fault.wait
                    if wait > max(LONGEST_WAIT, left):
                        why = f"{fault} (it asks to wait {wait:.0f} seconds)"
                        fault = _Retryable(why, unavailable=True, error=fault.error)
                        break
                elif over:
                    wait = min(wait, left)
                if over and (self._warned is None or now - self._warned > self.patience):
                    self._warned = now
                    log.warning("the %s at %s does not answer (%s); retrying for another %.0f seconds",
                                self.role, self.url, fault, left)  # fmt: skip
                self.retried += 1
                await asyncio.sleep(wait)
        message = f"the {self.role} at {self.url} does not answer: {fault}"
        raise (InfrastructureFault(message) if fault.error is None else ServerFailed(message, fault.error)) from fault

    def _patience_left(self, fault: _Retryable, began: float, now: float) -> float:
        """Return the seconds of retries left beyond the attempts of a request that first failed at `began`."""
        if not fault.unavailable or self._unavailable_since is None:
            return 0.0
        if fault.error is not None and fault.error.status == 429:  # answers to others say nothing against a rate limit
            since_answer = self.patience - (now - self._unavailable_since)
            return min(since_answer, RATE_LIMIT_PATIENCE * self.patience - (now - began))
        return self.patience - (now - min(began, self._unavailable_since))

    async def _attempt(
        self, method: str, path: str, body: Mapping[str, object] | None, incomplete: Callable[[Any], str | None]
    ) -> Any:
        """Send the request once. Raises _Retryable, RequestRefused and BadResponse."""
        query = self._query.replace("?", "&") if "?" in path else self._query
        url = f"{self.url}{path}{query}"
        try:
            async with asyncio.timeout(self._seconds):
                answer = await self._http.request(method, url, body, seconds=self._seconds, headers=self._headers())
        except TimeoutError as error:
            why = f"no answer in {self._seconds:g} seconds (`seconds` says how long)"
            raise _Retryable(why, unavailable=False) from error
        except ConnectionFailed as error:
            raise _Retryable(str(error), unavailable=not error.late) from error
        if (refusal := read_error(answer)) is not None:
            why = f"status {refusal.status}: {self._without_key(refusal.message)}"
            if refusal.retryable:
                raise _Retryable(why, unavailable=refusal.unavailable, wait=_retry_after(answer), error=refusal)
            raise RequestRefused(f"the {self.role} at {self.url}: {why}{self._key_advice(refusal)}", refusal)
        try:
            found = answer.json() if answer.body else None
        except (ValueError, RecursionError) as error:
            if answer.body.lstrip()[:1] in (b"", b"{", b"["):  # the body has no length and was cut
                raise _Retryable("its answer breaks off", unavailable=False) from error
            raise self.bad_response(f"no JSON ({self._without_key(_shorten(answer.text))[:80]})") from error
        if (why_not := incomplete(found)) is not None:
            raise _Retryable(why_not, unavailable=False)
        return found

    def _headers(self) -> Mapping[str, str]:
        """Return the header with the key for Azure's own API, which names it otherwise."""
        on_azure = (urlsplit(self.url).hostname or "").endswith(".azure.com")
        return {"api-key": self._key} if self._key and on_azure else {}

    def _key_advice(self, error: ServerError) -> str:
        if error.status not in (401, 403):
            return ""
        if self._key:
            return f"; the key that was sent is that of {self._key_env}: key_env names another variable"
        name = f": {self._key_env} is not set" if self._key_env else ""
        return f"; no key was sent{name}; key_env names the variable that holds it"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text

    def bad_response(self, what: str) -> BadResponse:
        """Describe a response with status 200 that lacks what was requested."""
        return BadResponse(f"the {self.role} at {self.url} gives {what}")


class RemoteModel(JsonClient):
    """One model of an OpenAI-compatible server of chat completions."""

    def __init__(self, role: str, url: str, model: str, **options: Any) -> None:
        super().__init__(role, url, **options)
        self.model = model
        self._renamed: dict[str, str] = {}
        self._unsupported: set[str] = set()

    async def message(self, messages: Sequence[Mapping[str, object]], **params: object) -> dict[str, Any]:
        """Return the first choice, with the response's `usage` in it.

        A server that takes fewer `max_tokens` is asked again without, one that calls it `max_completion_tokens` under
        that name, and one that takes no temperature or top_p without one that is 1, the default.

        Args:
            params: of the request, such as max_tokens and temperature.

        Raises:
            ContextExceeded: the messages leave no room in the model's context.
            RequestRefused, InfrastructureFault: as `post`.
        """
        answer = await self._complete({"model": self.model, "messages": list(messages), **params})
        try:
            choice = dict(answer["choices"][0])
            choice["message"] = dict(choice["message"])
        except (LookupError, TypeError, ValueError) as error:
            raise self.bad_response("no chat completion") from error
        finish = str(choice.get("finish_reason"))
        if finish.startswith("content_filter") or finish == "sensitive":  # Gemini's names the rule: `…: RECITATION`
            raise self.bad_response("an answer that its content filter has cut")
        if finish in _CONTEXT_FULL:
            choice["finish_reason"] = "length"
        usage = answer.get("usage")
        return {**choice, "usage": usage if isinstance(usage, dict) else {}}

    async def _complete(self, body: dict[str, object]) -> Any:
        dropped: set[str] = set()
        context_full = False
        while True:
            request = {key: value for key, value in body.items() if not self._left_out(key, value, dropped)}
            sent = {self._renamed.get(key, key): value for key, value in request.items()}
            try:
                answer = await self.post("/chat/completions", sent, incomplete=_incomplete)
            except (RequestRefused, ServerFailed) as refused:
                error = refused.error
                if error.code == "unsupported_parameter" and "max_completion_tokens" in error.message:
                    if "max_tokens" in sent:  # by now other requests may have renamed it
                        self._renamed = {"max_tokens": "max_completion_tokens"}
                        continue
                elif "max_tokens" in request and (error.too_long or error.names("max_tokens")):
                    context_full |= error.too_long
                    dropped.add("max_tokens")
                    continue
                elif default := [k for k, v in _DEFAULTS.items() if request.get(k) == v and error.names(k)]:
                    dropped.add(default[-1])  # top_p first: servers that take only one of both are asked with the other
                    continue
                if error.too_long:
                    raise ContextExceeded(str(refused), error) from refused
                raise
            self._unsupported |= dropped - {"max_tokens"} if context_full else dropped
            return answer

    def _left_out(self, key: str, value: object, dropped: set[str]) -> bool:
        return key in dropped or (key in self._unsupported and value == _DEFAULTS.get(key, value))

    async def text(self, messages: Sequence[Mapping[str, object]], **params: object) -> str:
        """Return the model's reply. Raises as `reply`, and BadResponse if reasoning takes all tokens."""
        text, complete = await self.reply(messages, **params)
        if not text and not complete:
            raise self.bad_response("no text: max_tokens end before its reasoning does")
        return text

    async def reply(self, messages: Sequence[Mapping[str, object]], **params: object) -> tuple[str, bool]:
        """Return the model's reply and whether it is complete; "" if it was cut within the reasoning.

        Raises InfrastructureFault, also if the server refuses the request or sends no text.
        """
        try:
            choice = await self.message(messages, **params)
        except RequestRefused as refused:
            raise InfrastructureFault(f"{refused}") from refused
        content, complete = choice["message"].get("content"), choice.get("finish_reason") != "length"
        if not content and not complete:
            return "", complete
        try:
            return extract_text(content), complete
        except (LookupError, TypeError) as error:
            raise self.bad_response("no text") from error


def extract_text(content: object) -> str:
    """Return a message's text; of a list of parts, the text parts. Raises LookupError or TypeError for other types."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part["type"] == "text")
    if not isinstance(content, str):
        raise TypeError(f"a {type(content).__name__} in place of a text")
    return content


def is_key_missing(key_env: str) -> bool:
    """Return whether `key_env` names a variable that is required and not set."""
    return bool(key_env) and key_env != DEFAULT_KEY_ENV and key_env not in os.environ


def read_error(answer: HttpResponse) -> ServerError | None:
    """Read the error in a response; None for a success.

    An `error` in place of the result in a response with status 200, as OpenRouter sends, counts as the status that it
    names, else as 502 if it has a code, as 400 if it has none.
    """
    if 300 <= answer.status < 400:
        where = answer.headers.get("Location", "nowhere")
        return ServerError(answer.status, f"it redirects to {where}: give that URL")
    if answer.ok and b'"error"' not in answer.body[:2000]:
        return None
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        body = None
    body = body if isinstance(body, dict) else {}
    if answer.ok and (not body.get("error") or body.get("choices") or body.get("data")):
        return None
    error = body.get("error", body)
    if isinstance(error, str):
        error = {"message": error, "type": body.get("error_type"), "code": body.get("code")}
    error = error if isinstance(error, dict) else {}
    number, status = str(error.get("code")), answer.status
    code = error.get("type") if number.isdecimal() or not isinstance(error.get("code"), str) else error["code"]
    if answer.ok:
        status = int(number) if number.isdecimal() and 400 <= int(number) < 600 else 502 if code else 400
    message = error.get("message") or error.get("detail") or answer.text
    metadata = error.get("metadata")  # OpenRouter's, with the error of the provider behind it
    if isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str) and raw:
        message = f"{message}: {raw}"
    message = message if isinstance(message, str) else json.dumps(message)
    param = error.get("param")
    return ServerError(
        status, _shorten(message), code if isinstance(code, str) else None, param if isinstance(param, str) else None
    )


def _shorten(text: str) -> str:
    """Return a body on one line, SHOWN characters at most, HTML without its tags."""
    if text.lstrip()[:1] == "<":
        text = _TAG.sub(" ", text)
    return " ".join(text.split())[:SHOWN]


def _incomplete(answer: Any) -> str | None:
    """Return why the server did not complete an answer, None if it did."""
    if answer is None:
        return "its answer is empty"
    try:
        choice = answer["choices"][0]
        finish, error = choice.get("finish_reason"), choice.get("error")
    except (LookupError, TypeError, AttributeError):
        return None
    if finish not in _BROKEN_OFF:
        return None
    why = error.get("message") if isinstance(error, Mapping) else None
    return f"it broke the answer off ({finish}{f': {why}' if why else ''})"


def _retry_after(answer: HttpResponse) -> float | None:
    """Return the seconds of the header Retry-After, a number or a date."""
    value = answer.headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d+)?", value, re.ASCII):
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # not a date, or one without a time zone
        return None
