"""vLLM servers, token ids both ways, whose weights follow the trainer's without a restart.

**Weights.** After an update the trainer's weights are written to a folder in memory, once, and every server reads them
through vLLM's own weight transfer (`extension/retcon_vllm.py`). A version has a name that no other run uses; each
answer says which weights sampled its tokens, and one of other weights is not taken: a server that was started anew in
between is given the weights again first. What the server has cached is salted with the version.

**Faults.** A request whose way fails goes to the next server at once. Where all are down it waits until one is back,
`patience` seconds at most. A server of our own that has ended is started again meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from retcon.chat.types import Tokenizer
from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.types import Generation, SamplingParams, check_params
from retcon.engine.vllm.client import VLLMClient, Wanted, Weights
from retcon.engine.vllm.process import Server
from retcon.models.remote import Refused, Remote

if TYPE_CHECKING:  # it brings torch
    from transformers import PreTrainedModel

LONGEST_PAUSE = 2.0
"""Seconds before a server that is down is asked again."""


@dataclass(frozen=True, slots=True)
class VLLMSettings:
    """urls: of servers that run already, their roots. model: its name there, empty for the only one. seconds: of a
    request. patience: seconds that a request waits while all servers are down. at_once: requests of one server."""

    urls: tuple[str, ...] = ()
    model: str = ""
    key_env: str = ""
    seconds: float = 600.0
    patience: float = 300.0
    at_once: int = 256
    seeds: bool = True


@dataclass(slots=True)
class VLLMStats:
    """Counters since the engine was made. Ids: generated, told, scored. retried: requests after a fault of the way.
    restarted: times that a server of our own had ended."""

    generated: int = 0
    prefilled: int = 0
    scored: int = 0
    retried: int = 0
    restarted: int = 0

    def since(self, before: VLLMStats) -> VLLMStats:
        """The difference to an earlier copy."""
        earlier = asdict(before)
        return VLLMStats(**{name: value - earlier[name] for name, value in asdict(self).items()})

    def metrics(self) -> dict[str, float]:
        """What a run logs of a step."""
        return {"engine_prefilled": self.prefilled, "engine_retried": self.retried, "engine_restarted": self.restarted}


@dataclass(slots=True)
class _Place:
    """A server as the engine sees it. down_until: by the monotonic clock. faults: in a row."""

    client: VLLMClient
    down_until: float = 0.0
    faults: int = 0

    def failed(self) -> None:
        self.faults += 1
        self.client.lost()
        self.down_until = time.monotonic() + min(LONGEST_PAUSE, 0.05 * 2**self.faults)


class VLLMEngine:
    """A `Generator` over servers, and what training needs of one. model: gives the weights that `follow` sends.

    trained: whether the servers will have to take weights. own: a server that is started and ended with the
    connections, or None. It works within `connected`.
    """

    def __init__(
        self,
        settings: VLLMSettings,
        tokenizer: Tokenizer,
        *,
        max_len: int,
        model: Callable[[], PreTrainedModel],
        own: Server | None = None,
        trained: bool = False,
    ) -> None:
        self.settings, self.max_len, self.stats = settings, max_len, VLLMStats()
        self._tokenizer, self._model, self._own = tokenizer, model, own
        self._weights = Weights()
        self._run, self._count = secrets.token_hex(6), 0
        self._places: list[_Place] = []
        self._restarting = asyncio.Lock()
        self._trained = trained

    @property
    def version(self) -> str | None:
        """Of the weights that are asked for; None before the first `follow`."""
        return self._weights.version

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Within, the servers can be asked; our own is up. Raises EngineError where one is not what it should be, or
        none answers."""
        urls = self.settings.urls if self._own is None else (self._own.url,)
        self._restarting = asyncio.Lock()
        try:
            if self._own is not None:
                await self._own.start()
            about = self.settings
            wanted = Wanted(about.model, self._tokenizer, self.max_len, about.seeds, self._trained)
            self._places = [_Place(VLLMClient(self._remote(url), wanted, self._weights)) for url in urls]
            faults = [fault for place in self._places if (fault := await self._prepare(place)) is not None]
            if len(faults) == len(self._places):
                raise EngineError(f"no vLLM server answers: {'; '.join(map(str, faults))}") from faults[0]
            yield
        finally:
            for place in self._places:
                await place.client.remote.close()
            self._places = []
            if self._own is not None:
                await self._own.stop()
            self._forget_folder()

    def _remote(self, url: str) -> Remote:
        about = self.settings
        return Remote("vLLM", url, key_env=about.key_env, seconds=about.seconds, attempts=1, at_once=about.at_once)

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`, (T,), T < max_len. Raises EngineError for what the server refuses, InfrastructureFault where
        none answers in time."""
        check_params(request_id, params)
        if len(ids) >= self.max_len:
            raise EngineError(f"request {request_id}: {len(ids)} tokens leave no room within {self.max_len}")
        asked: dict[str, object] = {
            "temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k, "min_p": params.min_p,
            "max_tokens": min(params.max_tokens, self.max_len - len(ids)), "stop_token_ids": list(params.stop_ids),
            "ignore_eos": True, "logprobs": 0, "detokenize": bool(params.stop),
        }  # fmt: skip
        if params.stop:
            asked |= {"stop": list(params.stop), "include_stop_str_in_output": True}
        if self.settings.seeds:
            asked["seed"] = params.seed % 2**31
        choice, version = await self._ask(request_id, ids, asked)
        try:
            found = tuple(int(i) for i in choice["token_ids"])
            logprobs = tuple(min(0.0, float(one["logprob"])) for one in choice["logprobs"]["content"])
            stopped = choice["finish_reason"] == "stop"
        except (LookupError, TypeError, ValueError) as error:
            raise InfrastructureFault(f"request {request_id}: vLLM's answer cannot be read: {error!r}") from error
        self.stats.generated += len(found)
        return Generation(found, logprobs, "stop" if stopped else "length", version=version)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> tuple[float, ...]:
        """Log-probs of ids[start:], (T - start,) nats under the untempered model. Raises as `generate`."""
        if not 1 <= start <= len(ids) <= self.max_len:
            raise EngineError(f"request {request_id}: start {start} of {len(ids)} tokens; at most {self.max_len} fit")
        if start == len(ids):
            return ()
        # The last id is given as what to generate: a prompt as long as the context would leave no room.
        *before, last = ids
        asked = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "logprobs": 0, "detokenize": False,
                 "allowed_token_ids": [last], "ignore_eos": True}  # fmt: skip
        choice, _ = await self._ask(request_id, before, asked)
        try:
            told = choice["prompt_logprobs"]
            scores = [float(told[n][str(ids[n])]["logprob"]) for n in range(start, len(before))]
            scores.append(float(choice["logprobs"]["content"][0]["logprob"]))
        except (LookupError, TypeError, ValueError) as error:
            raise InfrastructureFault(f"request {request_id}: vLLM's scores cannot be read: {error!r}") from error
        self.stats.scored += len(scores)
        return tuple(min(0.0, score) for score in scores)

    async def release(self, request_id: str) -> None:
        """The server evicts what nobody asks for."""

    def invalidate(self) -> None:
        """What a server has cached is of a version; `follow` makes another one."""

    async def follow(self) -> None:
        """The model has new weights: servers get them now, those that are down before they are asked again.

        Raises EngineError where they cannot be written."""
        self._count += 1
        from retcon.engine.vllm.weights import write_weights

        folder = await asyncio.to_thread(write_weights, self._model())
        self._forget_folder()
        self._weights.folder, self._weights.version = folder, f"{self._run}-{self._count}"
        await asyncio.gather(*(self._prepare(place) for place in self._places))

    async def _prepare(self, place: _Place) -> InfrastructureFault | None:
        try:
            await place.client.ready()
        except InfrastructureFault as fault:
            place.failed()
            return fault
        return None

    async def _ask(self, request_id: str, ids: Sequence[int], params: dict[str, object]) -> tuple[dict[str, Any], str]:
        if not self._places:
            raise EngineError(f"request {request_id}: the engine is not connected: see `VLLMEngine.connected`")
        began, last = time.monotonic(), ""
        while True:
            now = time.monotonic()
            place = self._place_of(request_id, now)
            if place is None:
                if now - began > self.settings.patience:
                    raise InfrastructureFault(f"request {request_id}: {last or 'all vLLM servers are down'}")
                await self._restart()
                await asyncio.sleep(max(0.0, min(p.down_until for p in self._places) - time.monotonic()))
                continue
            try:
                found = await place.client.generate(ids, params, salt=self._weights.version)
            except Refused as refused:
                raise EngineError(f"request {request_id}: {refused}") from refused
            except InfrastructureFault as fault:
                place.failed()
                self.stats.retried += 1
                last = str(fault)
                continue
            place.faults = 0
            self.stats.prefilled += found[0]["usage"].get("prompt_tokens") or 0
            return found

    def _place_of(self, request_id: str, now: float) -> _Place | None:
        """The request's own server, where its history is cached; the next one that is up where that is down."""
        first = zlib.crc32(request_id.encode()) % len(self._places)
        order = [*self._places[first:], *self._places[:first]]
        return next((place for place in order if place.down_until <= now), None)

    async def _restart(self) -> None:
        if self._own is None:
            return
        async with self._restarting:
            if not self._own.alive:
                await self._own.stop()
                await self._own.start()
                self.stats.restarted += 1

    def _forget_folder(self) -> None:
        if self._weights.folder is not None:
            shutil.rmtree(self._weights.folder, ignore_errors=True)
            self._weights.folder = None

    async def __aenter__(self) -> VLLMEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What is open belongs to `connected`."""
