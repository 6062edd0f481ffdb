"""Any Hugging Face causal LM, in this process, over token ids.

**Lockstep.** Requests are served in phases. A phase starts when every open request (one that was admitted and not
released) waits in the engine; a row that ends is answered at once, so that its tool runs while the others decode, and
comes back with the next phase. The composition of every batch therefore depends on ids alone and never on how long a
tool took, which is what lets a resumed run repeat bit for bit. The price: a request that neither calls nor is released
holds up all others. Callers release what is over, and give their tools wall limits.

**Keys and values** stay in a request's slot from turn to turn. A call feeds only what differs from what is cached: a
rollback is a crop to the longest common prefix. Equal prompts of one phase are computed once and copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from transformers import PreTrainedModel

from retcon.chat.types import Tokenizer
from retcon.core.errors import EngineError
from retcon.engine.phases import EngineStats, Phases
from retcon.engine.requests import GenerateCall, Request, ScoreCall
from retcon.engine.stops import StopStrings
from retcon.engine.support import check_model
from retcon.engine.types import Generation, SamplingParams, check_params

T = TypeVar("T")

QUIET_PASSES = 3
"""Passes of the event loop without a new call before a phase may start, so that tasks made together start together."""


class LocalEngine:
    """A `Generator` over `model`, whose weights it shares with whoever else holds it.

    max_len: ids of a request, generated ones included. max_requests: requests that are open at once; further ones wait
    until some are released. They are admitted in the order of their request ids (as text), not of their arrival, which
    may depend on tools. pad_id: fills up ragged prefills, and is masked. tokenizer: needed for stop strings alone.

    Raises EngineError for a model whose state the cache cannot hold. After a change of the weights call `invalidate`.
    One event loop at a time: a call from a new loop forgets the requests of the old one, whose callers are gone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_len: int,
        max_requests: int = 128,
        pad_id: int = 0,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        check_model(model, max_len)
        if max_requests < 1:
            raise EngineError(f"max_requests is {max_requests}; at least 1 is needed")
        self.model, self.max_len, self.max_requests, self.tokenizer = model, max_len, max_requests, tokenizer
        self._phases = Phases(model, max_requests, max_len, pad_id)
        self._vocab: int = model.config.get_text_config().vocab_size
        self._open: dict[str, Request] = {}
        self._queue: dict[str, Request] = {}
        self._arrivals = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Task[None] | None = None

    @property
    def stats(self) -> EngineStats:
        """Counters since the engine was made."""
        return self._phases.stats

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`, (T,), T < max_len. Generation also ends, with stop `length`, at max_len ids in all.

        Raises EngineError for ids or parameters that cannot be served; other requests are not affected.
        """
        ids = tuple(ids)
        self._check_ids(request_id, ids)
        if len(ids) >= self.max_len:
            raise EngineError(
                f"request {request_id}: {len(ids)} ids leave no room to generate within max_len {self.max_len}; "
                "shorten the history or raise max_len"
            )
        check_params(request_id, params)
        strings = None
        if params.stop:
            if self.tokenizer is None:
                raise EngineError(
                    f"request {request_id}: stop {params.stop!r} are strings, and the engine was made without a "
                    "tokenizer; give LocalEngine one, or use stop_ids"
                )
            strings = StopStrings(self.tokenizer, params.stop)
        limit = min(params.max_tokens, self.max_len - len(ids))
        done: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        return await self._answer(request_id, GenerateCall(ids, params, limit, done, strings), done)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        """Log-probs of ids[start:], (T - start,) nats under the untempered model; 1 ≤ start ≤ T ≤ max_len.

        Raises EngineError as `generate` does.
        """
        ids = tuple(ids)
        self._check_ids(request_id, ids)
        if len(ids) > self.max_len:
            raise EngineError(
                f"request {request_id}: {len(ids)} ids are more than max_len {self.max_len}; "
                "shorten the history or raise max_len"
            )
        if not 1 <= start <= len(ids):
            raise EngineError(f"request {request_id}: start {start} is outside 1…{len(ids)}")
        done: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        return await self._answer(request_id, ScoreCall(ids, start, done), done)

    async def release(self, request_id: str) -> None:
        """The request is over: its slot is free, and the others need not wait for it. Unknown ids are ignored."""
        request = self._open.pop(request_id, None) or self._queue.pop(request_id, None)
        if request is not None:
            request.fail(EngineError(f"request {request_id} was released while it waited"))
            self._wake()

    def invalidate(self) -> None:
        """Forget all keys and values, as after a change of the weights, and free them; open requests stay open."""
        if self._phases.running:
            raise EngineError("the weights must not change while requests are being computed; await them first")
        for request in self._open.values():
            request.cached = ()
        self._phases.drop()

    def close(self) -> None:
        """End all: waiting calls raise EngineError, later ones too; the keys' and values' memory is given back."""
        self._closed = True
        if self._server is not None:
            self._server.cancel()
        self._fail(EngineError("the engine was closed"))
        self._phases.drop()

    async def __aenter__(self) -> LocalEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_ids(self, request_id: str, ids: tuple[int, ...]) -> None:
        if self._closed:
            raise EngineError(f"request {request_id}: the engine is closed")
        if not ids:
            raise EngineError(f"request {request_id}: no ids to continue")
        if min(ids) < 0 or max(ids) >= self._vocab:
            raise EngineError(
                f"request {request_id}: ids {min(ids)}…{max(ids)} are outside the model's vocabulary of {self._vocab}"
            )

    async def _answer(self, request_id: str, call: GenerateCall | ScoreCall, done: asyncio.Future[T]) -> T:
        """Let the call wait for its phase. A caller that is cancelled meanwhile gives its request up."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._open, self._queue, self._server, self._loop = {}, {}, None, loop
        request = self._open.get(request_id) or self._queue.get(request_id)
        if request is None:
            request = self._queue[request_id] = Request(request_id)
        elif request.waiting:
            raise EngineError(f"request {request_id} already waits for an answer; one call at a time")
        request.call = call
        self._arrivals += 1
        self._wake()
        try:
            return await done
        except asyncio.CancelledError:
            for requests in (self._open, self._queue):
                if requests.get(request_id) is request:
                    del requests[request_id]
            self._wake()
            raise

    def _wake(self) -> None:
        """See whether a phase can start, unless that is being seen to already."""
        if self._loop is None or self._closed or (self._server is not None and not self._server.done()):
            return
        self._server = self._loop.create_task(self._serve())
        self._server.add_done_callback(self._served)

    def _served(self, server: asyncio.Task[None]) -> None:
        """A fault of the model must leave no one waiting."""
        if server.cancelled():
            self._fail(EngineError("the engine's task was cancelled"))
        elif (error := server.exception()) is not None:
            failure = EngineError(f"the model failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _fail(self, error: EngineError) -> None:
        for request in (*self._open.values(), *self._queue.values()):
            request.fail(error)
        self._open, self._queue = {}, {}

    async def _serve(self) -> None:
        """Phases, as long as everyone waits. Scores go first: who scored usually generates right afterwards."""
        while await self._everyone_waits():
            self._admit()
            requests = sorted(self._open.values(), key=lambda r: r.slot)
            scoring = [r for r in requests if isinstance(r.call, ScoreCall)]
            if scoring:
                await self._phases.score(scoring)
            else:
                await self._phases.generate(requests)

    async def _everyone_waits(self) -> bool:
        quiet, seen = 0, self._arrivals
        while quiet < QUIET_PASSES:
            await asyncio.sleep(0)
            quiet, seen = (quiet + 1 if seen == self._arrivals else 0), self._arrivals
        return bool(self._open or self._queue) and all(r.waiting for r in self._open.values())

    def _admit(self) -> None:
        """Bring the open requests into slots 0…n-1, and as many queued ones as fit into the slots after them.

        Where a request lies follows from which requests were open at each phase, and from their ids, alone: a row's
        place in the batch may change the last bits of its result.
        """
        count = len(self._open)
        taken = {r.slot for r in self._open.values()}
        movers = sorted((r for r in self._open.values() if r.slot >= count), key=lambda r: r.slot)
        self._phases.move(movers, [slot for slot in range(count) if slot not in taken])
        for slot, request_id in enumerate(sorted(self._queue)[: self.max_requests - count], start=count):
            request = self._open[request_id] = self._queue.pop(request_id)
            request.slot = slot
