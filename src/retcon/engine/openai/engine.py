"""Engine over an OpenAI-compatible server of chat completions.

It serves agents, evaluation, demonstrations and SAAR at inference, not training: the server returns text, without token
ids or log-probs of other texts.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from retcon.core.errors import EngineError, InfrastructureFault, nearest
from retcon.engine.openai.messages import END, Manner, SurrogateTokenizer, build_request, split_message, wrap_arguments
from retcon.engine.types import Generation, SamplingParams, StopStrings, check_params
from retcon.models.remote import (
    DEFAULT_KEY_ENV,
    BadResponse,
    ContextExceeded,
    RemoteModel,
    RequestRefused,
    ServerError,
    ServerFailed,
)

IN_A_ROW = 16
"""Turns of running rollouts between two first turns, so that no rollout waits forever."""


class RequestSlots:
    """A semaphore that prefers rollouts under way to new ones.

    Rollouts then end one after the other, and an interrupted evaluation has whole problems.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._running: deque[asyncio.Future[None]] = deque()
        self._new: deque[asyncio.Future[None]] = deque()
        self._in_a_row = 0

    @asynccontextmanager
    async def slot(self, *, under_way: bool) -> AsyncIterator[None]:
        """Hold a slot within the block."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (self._running if under_way else self._new).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it had just been given a slot
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        queues = (self._running, self._new) if self._in_a_row < IN_A_ROW else (self._new, self._running)
        for queue in queues:
            while queue:
                if not (turn := queue.popleft()).done():  # else its request was cancelled
                    self._in_a_row = self._in_a_row + 1 if queue is self._running else 0
                    turn.set_result(None)
                    return
        self._free += 1


LISTED = 8
"""Names of models in an error message."""


async def find_model(remote: RemoteModel) -> tuple[str, str]:
    """Return the served model's name and its `owned_by`.

    If the URL lists no models, /v1 is appended. A model that is not listed gets a short request: some servers list
    none, and Azure's deployments and OpenRouter's variants are not listed. Raises EngineError.
    """
    cards, why = await _cards(remote)
    if cards is None and not remote.url.endswith("/v1"):
        base, remote.url = remote.url, f"{remote.url}/v1"
        cards, _ = await _cards(remote)
        if cards is None:
            remote.url = base
    if cards is None and not remote.model:
        raise EngineError(f"{why}: it lists no models; {_base(remote)}, and name the model") from why
    listed = cards or {}
    names = ", ".join(list(listed)[:LISTED]) or "none"
    if len(listed) > LISTED:
        names += f" and {len(listed) - LISTED} more"
    wanted = remote.model
    if not wanted:
        if len(listed) == 1:
            return next(iter(listed.items()))
        what = "several models: name one by engine.model" if listed else "no model"
        raise EngineError(f"the server at {remote.url} serves {what}; there are: {names}")
    if wanted in listed:
        return wanted, listed[wanted]
    try:
        await remote.message([{"role": "user", "content": "Say yes."}], max_tokens=16)
    except RequestRefused as refused:
        if refused.error.status in (401, 403):
            raise
        if cards is None:
            raise EngineError(f"{refused}: {_base(remote)}") from refused
        raise EngineError(
            f"the server at {remote.url} serves no model '{wanted}'{nearest(wanted, listed)}; there are: {names} "
            f"({refused})"
        ) from refused
    except InfrastructureFault as fault:
        raise EngineError(f"{fault}: {_base(remote)}" if cards is None else str(fault)) from fault
    owners = set(listed.values())
    return wanted, owners.pop() if len(owners) == 1 else ""


def _base(remote: RemoteModel) -> str:
    return f"is {remote.url} the base of its API? That often ends in /v1"


async def _cards(remote: RemoteModel) -> tuple[dict[str, str] | None, EngineError | InfrastructureFault | None]:
    """Return `owned_by` of each listed model, or None and the reason.

    Raises EngineError if the server does not answer or refuses the key.
    """
    try:
        listed = await remote.get("/models")
    except RequestRefused as refused:
        if refused.error.status in (401, 403):
            raise
        return None, refused
    except BadResponse as fault:
        return None, fault
    except InfrastructureFault as fault:
        raise EngineError(str(fault)) from fault
    try:
        cards = listed["data"] if isinstance(listed, dict) else listed  # Together's is a list
        return {str(card["id"]): str(card.get("owned_by") or "") for card in cards or ()}, None
    except (LookupError, TypeError, AttributeError):
        return None, remote.bad_response("no list of models")


log = logging.getLogger(__name__)

FULL_SAMPLING = {
    "vllm": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "sglang": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "llamacpp": {"top_k": -1, "min_p": 0.0},
}
"""By `owned_by` of a server's models: parameters that turn its own truncation off. These servers take missing ones from
the model's generation_config.json, and llama.cpp from its defaults (top_k 40, min_p 0.05)."""


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """Settings of an `OpenAIEngine`.

    Args:
        url: the API's base, such as http://127.0.0.1:8000/v1.
        model: its name there; empty: the only one that is served.
        manner: how calls are written.
        key_env, seconds, attempts, at_once, wait, patience: see `JsonClient`.
        seeds: whether requests have a seed, which not every server accepts.
        answer_tokens: most tokens of one message; 0: what the limits leave.
    """

    url: str
    model: str = ""
    manner: Manner = "native"
    key_env: str = DEFAULT_KEY_ENV
    seconds: float = 120.0
    attempts: int = 4
    at_once: int = 16
    wait: float = 0.5
    seeds: bool = True
    answer_tokens: int = 0
    patience: float = 0.0


@dataclass(slots=True)
class OpenAIStats:
    """Counters since the engine was made.

    requests: answered; retried: after a fault. prompt_tokens, generated: tokens of prompts and of answers, by the
    server's count. cut: complete messages that did not fit.
    """

    requests: int = 0
    retried: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    cut: int = 0

    def since(self, before: OpenAIStats) -> OpenAIStats:
        """Return the difference to an earlier copy."""
        earlier = asdict(before)
        return OpenAIStats(**{name: value - earlier[name] for name, value in asdict(self).items()})

    def metrics(self) -> dict[str, float]:
        """Return the counters, prefixed with `server_`."""
        return {f"server_{name}": value for name, value in asdict(self).items()}


class OpenAIEngine:
    """A `Generator` over a server, for histories of an `engine.openai.messages` chat.

    The server gets a history as messages, recovered from its ids alone, so also a repaired one. Its answer is encoded
    with the stand-in tokenizer, without log-probs. A message that reaches the server's limit or `max_tokens` of the
    stand-in's tokens ends with stop `length`, as does a history that exceeds the model's context.

    It works within `connected`.
    """

    def __init__(self, settings: OpenAISettings, tokenizer: SurrogateTokenizer) -> None:
        self.settings, self.tokenizer, self.stats = settings, tokenizer, OpenAIStats()
        self.encoded_by = tokenizer.name
        self.model = settings.model
        self._remote: RemoteModel | None = None
        self._slots = RequestSlots(settings.at_once)
        self._under_way: set[str] = set()
        self._always: Mapping[str, object] = {}
        self._only_objects = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect within the block. Raises EngineError if the server is down or does not serve the model."""
        about = self.settings
        remote = RemoteModel(
            "model", about.url, self.model, key_env=about.key_env, seconds=about.seconds, attempts=about.attempts,
            at_once=about.at_once, wait=about.wait,
        )  # fmt: skip
        try:
            remote.model, owner = await find_model(remote)
            self.model, self._always = remote.model, FULL_SAMPLING.get(owner, {})
            remote.patience = about.patience
            self._remote = remote
            yield
        finally:
            self._remote = None
            self.stats.retried += remote.retried
            await remote.close()

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`, (T,), up to and including a stop id.

        Raises EngineError if the server refuses the request, InfrastructureFault if it stays unavailable, sends no
        message, or refuses this request after it has answered others.
        """
        check_params(request_id, params)
        if self._remote is None:
            raise EngineError(f"request {request_id}: the engine is not connected: see `OpenAIEngine.connected`")
        request = build_request(self.tokenizer, ids, self.settings.manner)
        under_way = request_id in self._under_way
        self._under_way.add(request_id)
        try:
            async with self._slots.slot(under_way=under_way):
                choice = await self._complete(self._remote, request, self._params(params))
        except ContextExceeded as refused:
            return Generation((), None, "length", too_long=str(refused))
        except RequestRefused as refused:
            error, why = refused.error, f"request {request_id}: {refused}{_advice(refused.error, request)}"
            if error.filtered or (self.stats.requests and error.status not in (401, 402)):
                raise InfrastructureFault(why) from refused
            raise EngineError(why) from refused
        except ServerFailed as failed:  # llama.cpp also refuses with status 500
            raise InfrastructureFault(f"{failed}{_advice(failed.error, request)}") from failed
        self.stats.requests += 1
        self.stats.prompt_tokens += _count(choice, "prompt_tokens")
        self.stats.generated += _count(choice, "completion_tokens")
        return self._generation(choice, params)

    async def _complete(self, remote: RemoteModel, request: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        """Return the server's choice.

        Most servers that render a chat template refuse, with status 400 or 500, a history in which a call's arguments
        are not a JSON object; from then on they are sent as text within one.
        """
        whole = wrap_arguments(request)
        if whole is None or self._only_objects:
            return await remote.message(**(whole or request), **params)
        try:
            return await remote.message(**request, **params)
        except ContextExceeded:
            raise
        except (RequestRefused, ServerFailed) as refused:
            if refused.error.unavailable:
                raise
            try:
                choice = await remote.message(**whole, **params)
            except (RequestRefused, InfrastructureFault):
                raise refused from None
            self._only_objects = True
            return choice

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> None:
        """Return None: the API gives no log-probs of a text."""
        return

    async def release(self, request_id: str) -> None:
        """Forget that the rollout is under way."""
        self._under_way.discard(request_id)

    def _params(self, params: SamplingParams) -> dict[str, Any]:
        """Parameters of a request; those that OpenAI's API lacks only if they are on."""
        found: dict[str, object] = {
            **self._always,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": min(filter(None, (params.max_tokens, params.message_tokens, self.settings.answer_tokens))),
        }
        if params.top_k:
            found["top_k"] = params.top_k
        if params.min_p:
            found["min_p"] = params.min_p
        if self.settings.seeds:
            found["seed"] = params.seed % 2**31
        return found

    def _count_cut(self, tokens: int, room: int) -> None:
        """Warn once of a complete message that is cut for lack of room."""
        if not self.stats.cut:
            log.warning(
                "a complete message is cut: it has %d tokens by the tokenizer of %s, and there is room for %d; raise "
                "engine.context or rollout.max_tokens, or set model.path to the server's own model, whose tokenizer "
                "then counts", tokens, self.encoded_by, room,
            )  # fmt: skip
        self.stats.cut += 1

    def _generation(self, choice: Mapping[str, Any], params: SamplingParams) -> Generation:
        assert self._remote is not None
        try:
            pieces = split_message(choice["message"], self.settings.manner)
        except (LookupError, TypeError, AttributeError) as error:
            raise self._remote.bad_response("a message that cannot be read") from error
        ids = [i for piece in pieces for i in self.tokenizer.encode(piece)]
        whole = choice.get("finish_reason") != "length"
        at = self._stopped(pieces, params.stop)
        if at is not None and at <= params.max_tokens:
            return Generation(tuple(ids[:at]), None, "stop")
        if whole:
            ids.append(END)
        if len(ids) > params.max_tokens:
            if whole:
                self._count_cut(len(ids), params.max_tokens)
            ids, whole = ids[: params.max_tokens], False
        return Generation(tuple(ids), None, "stop" if whole else "length")

    def _stopped(self, pieces: Sequence[str], stop: tuple[str, ...]) -> int | None:
        """Return the tokens up to the end of a stop string in the text, without native calls and the line break before
        them."""
        apart = self.settings.manner == "native" and len(pieces) > 1
        text = pieces[0].removesuffix("\n") if apart else "".join(pieces)
        if not any(string in text for string in stop):
            return None
        strings = StopStrings(self.tokenizer, stop)
        ids = (i for piece in (pieces[:1] if apart else pieces) for i in self.tokenizer.encode(piece))
        return next((n for n, i in enumerate(ids, 1) if strings.completed_by(i)), None)


def _count(choice: Mapping[str, Any], name: str) -> int:
    number = choice["usage"].get(name)
    return number if isinstance(number, int) else 0


def _advice(error: ServerError, request: Mapping[str, object]) -> str:
    """Advise what to set so that the server accepts the request."""
    if "tools" in request and re.search(r"\btool", error.message):
        return "; engine.calls = 'fence' asks without the API's tools"
    if error.names("seed"):
        return "; engine.seeds = false sends none"
    if names := [name for name in ("top_p", "temperature") if error.names(name)]:
        return f"; a server that does not support it gets no {' or '.join(names)} if rollout.{names[0]} = 1"
    return ""
