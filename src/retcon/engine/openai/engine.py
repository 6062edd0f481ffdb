"""Any OpenAI-compatible chat-completions server, which speaks text: for agents, evaluation, demonstrations and SAAR at
inference. Nothing can be trained with it: it gives no ids, and no log-probs of what it would say."""

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
from retcon.engine.openai.messages import END, Manner, StandIn, pieces_of, request_of, with_objects
from retcon.engine.types import Generation, SamplingParams, StopStrings, check_params
from retcon.models.refusals import Said
from retcon.models.remote import USUAL_KEY, Failed, Refused, RemoteModel, TooLong, Unreadable

IN_A_ROW = 16
"""Turns of rollouts that are under way, after which one that has yet to begin has its first: none waits for ever."""


class Places:
    """So many at a time. Rollouts that are under way go before others' first turns, so that they come to their ends one
    after the other: what is kept of an evaluation that is interrupted are whole problems."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._again: deque[asyncio.Future[None]] = deque()
        self._first: deque[asyncio.Future[None]] = deque()
        self._in_a_row = 0

    @asynccontextmanager
    async def place(self, *, under_way: bool) -> AsyncIterator[None]:
        """A place, for as long as the block lasts."""
        if self._free:
            self._free -= 1
        else:
            await self._turn(self._again if under_way else self._first)
        try:
            yield
        finally:
            self._leave()

    async def _turn(self, queue: deque[asyncio.Future[None]]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just been given one
                self._leave()
            raise

    def _leave(self) -> None:
        queues = (self._again, self._first) if self._in_a_row < IN_A_ROW else (self._first, self._again)
        for queue in queues:
            while queue:
                if not (turn := queue.popleft()).done():  # else nobody waits for it any more
                    self._in_a_row = self._in_a_row + 1 if queue is self._again else 0
                    turn.set_result(None)
                    return
        self._free += 1


LISTED = 8
"""Names of models that a message has room for."""


async def served_by(remote: RemoteModel) -> tuple[str, str]:
    """The name of the model, found where it was not given, and who owns it. Raises EngineError.

    Where the URL lists no models, that with /v1 behind it is tried. A model that is not listed is asked for a word:
    some servers list none, and Azure's deployments and OpenRouter's variants are in no list."""
    cards, why = await _cards(remote)
    if cards is None and not remote.url.endswith("/v1"):
        base, remote.url = remote.url, f"{remote.url}/v1"
        cards, _ = await _cards(remote)
        if cards is None:
            remote.url = base
    if cards is None and not remote.model:
        raise EngineError(f"{why}: it does not say what it serves; {_base(remote)}, and name the model") from why
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
    except Refused as refused:
        if refused.said.status in (401, 403):
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
    """Of each model that is listed its name and who owns it; None, and why, for what is no list. Raises EngineError for
    a server that does not answer, and for a key that it does not take."""
    try:
        listed = await remote.get("/models")
    except Refused as refused:
        if refused.said.status in (401, 403):
            raise
        return None, refused
    except Unreadable as fault:
        return None, fault
    except InfrastructureFault as fault:
        raise EngineError(str(fault)) from fault
    try:
        cards = listed["data"] if isinstance(listed, dict) else listed  # Together's is a list
        return {str(card["id"]): str(card.get("owned_by") or "") for card in cards or ()}, None
    except (LookupError, TypeError, AttributeError):
        return None, remote.no_answer("no list of models")


log = logging.getLogger(__name__)

FULL_SAMPLING = {
    "vllm": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "sglang": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "llamacpp": {"top_k": -1, "min_p": 0.0},
}
"""By who a server says owns its models: what it has to be told to sample as it is asked to. What is left out, these
servers take from the model's generation_config.json, and llama.cpp from defaults of its own (top_k 40, min_p 0.05)."""


@dataclass(frozen=True, slots=True)
class OpenAISettings:
    """url: the API's base, such as http://127.0.0.1:8000/v1. model: its name there; empty: the only one that it serves.
    manner: how calls are written. seeds: whether requests bring a seed, which not every server takes. answer_tokens: of
    one message at most, 0 for what the limits leave. seconds, attempts, at_once, wait, key_env: as in `Remote`."""

    url: str
    model: str = ""
    manner: Manner = "native"
    key_env: str = USUAL_KEY
    seconds: float = 120.0
    attempts: int = 4
    at_once: int = 16
    wait: float = 0.5
    seeds: bool = True
    answer_tokens: int = 0
    patience: float = 0.0


@dataclass(slots=True)
class OpenAIStats:
    """Counters since the engine was made. requests: that were answered; retried: after a fault of the way. told,
    generated: tokens, as the server counts them. cut: messages that the server had ended and that did not fit."""

    requests: int = 0
    retried: int = 0
    told: int = 0
    generated: int = 0
    cut: int = 0

    def since(self, before: OpenAIStats) -> OpenAIStats:
        """The difference to an earlier copy."""
        earlier = asdict(before)
        return OpenAIStats(**{name: value - earlier[name] for name, value in asdict(self).items()})

    def metrics(self) -> dict[str, float]:
        """By name, with `server_` before it."""
        return {f"server_{name}": value for name, value in asdict(self).items()}


class OpenAIEngine:
    """A `Generator` over histories that a chat of `engine.openai.messages` made with `tokenizer`.

    A history is told to the server as messages, from its ids alone, so that whatever a repair made of it is told as it
    is; what the server answers becomes ids of the tokenizer that stands in for its own. Log-probs are None. A message
    that is cut off by the server's limit, or is longer than `max_tokens` of the stand-in's tokens, ends with stop
    `length`, as does a history that is longer than the model takes.

    It works within `connected`.
    """

    def __init__(self, settings: OpenAISettings, tokenizer: StandIn) -> None:
        self.settings, self.tokenizer, self.stats = settings, tokenizer, OpenAIStats()
        self.encoded_by = tokenizer.name
        self.model = settings.model
        self._remote: RemoteModel | None = None
        self._places = Places(settings.at_once)
        self._under_way: set[str] = set()
        self._always: Mapping[str, object] = {}
        self._only_objects = False

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Within, connections are open, of the event loop that runs. Raises EngineError for a server that is down or
        serves another model: the first request is made before any work."""
        about = self.settings
        remote = RemoteModel(
            "model", about.url, self.model, key_env=about.key_env, seconds=about.seconds, attempts=about.attempts,
            at_once=about.at_once, wait=about.wait,
        )  # fmt: skip
        try:
            remote.model, owner = await served_by(remote)
            self.model, self._always = remote.model, FULL_SAMPLING.get(owner, {})
            remote.patience = about.patience
            self._remote = remote
            yield
        finally:
            self._remote = None
            self.stats.retried += remote.retried
            await remote.close()

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """What the model says next to `ids`, (T,), its stop id among it. Raises EngineError where the server refuses,
        InfrastructureFault where it stays away, gives no message, or refuses this request and has answered others."""
        check_params(request_id, params)
        if self._remote is None:
            raise EngineError(f"request {request_id}: the engine is not connected: see `OpenAIEngine.connected`")
        request = request_of(self.tokenizer, ids, self.settings.manner)
        under_way = request_id in self._under_way
        self._under_way.add(request_id)
        try:
            async with self._places.place(under_way=under_way):
                choice = await self._told(self._remote, request, self._params(params))
        except TooLong as refused:
            return Generation((), None, "length", too_long=str(refused))
        except Refused as refused:
            said, why = refused.said, f"request {request_id}: {refused}{_advice(refused.said, request)}"
            if said.filtered or (self.stats.requests and said.status not in (401, 402)):
                raise InfrastructureFault(why) from refused
            raise EngineError(why) from refused
        except Failed as failed:  # llama.cpp refuses with status 500, too
            raise InfrastructureFault(f"{failed}{_advice(failed.said, request)}") from failed
        self.stats.requests += 1
        self.stats.told += _count(choice, "prompt_tokens")
        self.stats.generated += _count(choice, "completion_tokens")
        return self._generation(choice, params)

    async def _told(self, remote: RemoteModel, request: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        """The server's choice. Most servers that render a chat template take no history in which the arguments of a
        call are not a JSON object, and say so with status 400 or 500: theirs are told as one, from then on."""
        whole = with_objects(request)
        if whole is None or self._only_objects:
            return await remote.message(**(whole or request), **params)
        try:
            return await remote.message(**request, **params)
        except TooLong:
            raise
        except (Refused, Failed) as refused:
            if refused.said.away:
                raise
            try:
                choice = await remote.message(**whole, **params)
            except (Refused, InfrastructureFault):
                raise refused from None
            self._only_objects = True
            return choice

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> None:
        """None: what it would have said with which probability, the server does not tell."""
        return

    async def release(self, request_id: str) -> None:
        """It is under way no longer; nothing else was kept."""
        self._under_way.discard(request_id)

    def _params(self, params: SamplingParams) -> dict[str, Any]:
        """The request's parameters; those that OpenAI's own API lacks only where they do something."""
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

    def _tell_cut(self, tokens: int, room: int) -> None:
        """A message that is whole, and for which there is no room, is no shortcoming of the model."""
        if not self.stats.cut:
            log.warning(
                "a message that the server had ended is cut, since it has %d tokens as %s counts them, and there is "
                "room for %d: raise engine.context or rollout.max_tokens, or set model.path to the server's own model, "
                "whose tokenizer then counts", tokens, self.encoded_by, room,
            )  # fmt: skip
        self.stats.cut += 1

    def _generation(self, choice: Mapping[str, Any], params: SamplingParams) -> Generation:
        assert self._remote is not None
        try:
            pieces = pieces_of(choice["message"], self.settings.manner)
        except (LookupError, TypeError, AttributeError) as error:
            raise self._remote.no_answer("a message that cannot be read") from error
        ids = [i for piece in pieces for i in self.tokenizer.encode(piece)]
        whole = choice.get("finish_reason") != "length"
        at = self._stopped(pieces, params.stop)
        if at is not None and at <= params.max_tokens:
            return Generation(tuple(ids[:at]), None, "stop")
        if whole:
            ids.append(END)
        if len(ids) > params.max_tokens:
            if whole:
                self._tell_cut(len(ids), params.max_tokens)
            ids, whole = ids[: params.max_tokens], False
        return Generation(tuple(ids), None, "stop" if whole else "length")

    def _stopped(self, pieces: Sequence[str], stop: tuple[str, ...]) -> int | None:
        """How many tokens there are up to the end of a stop string in what the model said: native calls are none of its
        words, nor is the line break before them."""
        apart = self.settings.manner == "native" and len(pieces) > 1
        said = pieces[0].removesuffix("\n") if apart else "".join(pieces)
        if not any(string in said for string in stop):
            return None
        strings = StopStrings(self.tokenizer, stop)
        ids = (i for piece in (pieces[:1] if apart else pieces) for i in self.tokenizer.encode(piece))
        return next((n for n, i in enumerate(ids, 1) if strings.completed_by(i)), None)


def _count(choice: Mapping[str, Any], name: str) -> int:
    number = choice["usage"].get(name)
    return number if isinstance(number, int) else 0


def _advice(said: Said, request: Mapping[str, object]) -> str:
    """What to set where the server does not take what was sent."""
    if "tools" in request and re.search(r"\btool", said.text):
        return "; engine.calls = 'fence' asks without the API's tools"
    if re.search(r"\bseed\b", said.text):
        return "; engine.seeds = false sends none"
    if names := said.not_taken:
        which = " or ".join(f"rollout.{name} = 1" for name in names)
        return f"; {which} is not sent to a server that takes none"
    if re.search(r"\btemperature\b", said.text):
        return "; rollout.temperature says which is asked for"
    return ""
