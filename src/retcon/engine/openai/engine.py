"""Any OpenAI-compatible chat-completions server, which speaks text: for agents, evaluation, demonstrations and SAAR at
inference. Nothing can be trained with it: it gives no ids, and no log-probs of what it would say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from retcon.core.errors import EngineError, InfrastructureFault, nearest
from retcon.engine.openai.messages import Manner, pieces_of, request_of
from retcon.engine.openai.standin import END, StandIn
from retcon.engine.stops import StopStrings
from retcon.engine.types import Generation, SamplingParams, check_params
from retcon.models.remote import USUAL_KEY, Refused, RemoteModel

TOO_LONG = "context_length_exceeded"
"""What a server calls a conversation that is longer than its model takes."""


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


@dataclass(slots=True)
class OpenAIStats:
    """Counters since the engine was made. requests: that were answered; retried: after a fault of the way. told,
    generated: tokens, as the server counts them."""

    requests: int = 0
    retried: int = 0
    told: int = 0
    generated: int = 0

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
            remote.model = self.model = await _served(remote)
            self._remote = remote
            yield
        finally:
            self._remote = None
            self.stats.retried += remote.retried
            await remote.close()

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """What the model says next to `ids`, (T,), its stop id among it. Raises EngineError where the server refuses,
        InfrastructureFault where it stays away or gives no message."""
        check_params(request_id, params)
        if self._remote is None:
            raise EngineError(f"request {request_id}: the engine is not connected: see `OpenAIEngine.connected`")
        request = request_of(self.tokenizer, ids, self.settings.manner)
        messages = request.pop("messages")
        try:
            choice = await self._remote.message(messages, **request, **self._params(params))
        except Refused as refused:
            if refused.code == TOO_LONG:
                return Generation((), None, "length")
            raise EngineError(f"request {request_id}: {refused}") from refused
        self.stats.requests += 1
        self.stats.told += choice["usage"].get("prompt_tokens") or 0
        self.stats.generated += choice["usage"].get("completion_tokens") or 0
        return self._generation(choice, params)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> None:
        """None: what it would have said with which probability, the server does not tell."""
        return

    async def release(self, request_id: str) -> None:
        """Nothing is kept."""

    def _params(self, params: SamplingParams) -> dict[str, object]:
        """The request's parameters; those that OpenAI's own API lacks only where they do something."""
        most = self.settings.answer_tokens or params.max_tokens
        found: dict[str, object] = {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": min(most, params.max_tokens),
        }
        if params.top_k:
            found["top_k"] = params.top_k
        if params.min_p:
            found["min_p"] = params.min_p
        if self.settings.seeds:
            found["seed"] = params.seed % 2**31
        return found

    def _generation(self, choice: Mapping[str, Any], params: SamplingParams) -> Generation:
        assert self._remote is not None
        try:
            pieces = pieces_of(choice["message"], self.settings.manner)
        except (LookupError, TypeError, AttributeError) as error:
            raise self._remote.no_answer("a message that cannot be read") from error
        ids = [i for piece in pieces for i in self.tokenizer.encode(piece)]
        whole = choice.get("finish_reason") != "length"
        if params.stop:
            strings = StopStrings(self.tokenizer, params.stop)
            at = next((n for n, i in enumerate(ids, 1) if strings.completed_by(i)), None)
            if at is not None and at <= params.max_tokens:
                return Generation(tuple(ids[:at]), None, "stop")
        if whole:
            ids.append(END)
        if len(ids) > params.max_tokens:
            ids, whole = ids[: params.max_tokens], False
        return Generation(tuple(ids), None, "stop" if whole else "length")


async def _served(remote: RemoteModel) -> str:
    """The name of the model, found where it was not given. Raises EngineError."""
    try:
        listed = await remote.get("/models")
    except Refused as refused:
        if refused.status in (401, 403):
            raise EngineError(f"{refused}; the key is that of the variable that key_env names") from refused
        if remote.model:
            return remote.model  # a server that lists none
        raise EngineError(f"{refused}: it does not say what it serves; name the model") from refused
    except InfrastructureFault as fault:
        raise EngineError(str(fault)) from fault
    try:
        names = [str(one["id"]) for one in listed["data"]]
    except (LookupError, TypeError) as error:
        raise EngineError(f"{remote.no_answer('no list of models')}: is {remote.url} the base of its API?") from error
    if remote.model in names or (remote.model and not names):
        return remote.model
    if not remote.model and len(names) == 1:
        return names[0]
    wanted = f"no model '{remote.model}'{nearest(remote.model, names)}" if remote.model else "several models: name one"
    raise EngineError(f"the server at {remote.url} serves {wanted}; there are: {', '.join(names) or 'none'}")
