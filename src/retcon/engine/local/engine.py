"""Engine for any Hugging Face causal LM, in this process.

**Continuous batching.** A call joins the batch with the next forward and leaves it with its last id: those that decode
go on while the code of others runs (see `scheduler`). No tool holds the batch up; a few forwards' time is the most that
a thin one waits for company.

**Batch invariance.** A request's result does not depend on what else is in the batch: it has its own random stream, and
on CPUs its log-probs are the same bits (`LocalEngine.invariance`: whether that holds on this machine, as far as was
tried). So a resumed run repeats bit for bit although tools are never equally quick. The one exception: keys and values
that were evicted for lack of memory are computed again in other pieces, which may change last bits (`stats.evicted` and
`stats.preempted` count them).

**Several ids a forward.** Where that was found to change nothing, forwards are fed drafts of the next ids, from earlier
generations (see `drafts`).

**Keys and values** stay in a request's slot from turn to turn. A call feeds only what differs from what is cached: a
rollback is a crop to the longest common prefix. Equal prompts are computed once and copied.

**Any architecture.** Where packed forwards do not give what the model's own forward gives, that forward and its cache
do the work behind the same scheduler, more slowly (see `own`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import torch

from retcon.chat.types import Tokenizer
from retcon.core.errors import EngineError
from retcon.engine.local.decoder import Decoder, PackedDecoder, check_model, choose_decoder
from retcon.engine.local.graphs import CudaRecorder, GraphDecoder
from retcon.engine.local.requests import GenerateCall, Request, ScoreCall
from retcon.engine.local.scheduler import EngineStats, Scheduler
from retcon.engine.local.slabs import (
    Memory,
    disable_cudnn,
    free_memory,
    keep_pages,
    kv_budget,
    limit_kernels,
    resting_bytes,
    slot_capacity,
)
from retcon.engine.types import Generation, SamplingParams, StopStrings, check_params
from retcon.models.devices import disable_openmp_spin

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from retcon.engine.local.forward import Invariance

T = TypeVar("T")

QUIET_PASSES = 3
"""Passes of the event loop without a new call before an engine at rest starts, so that tasks made together start
together."""
GATHER_SHARE, GATHER_FORWARDS = 0.75, 4.0
"""On CPUs, where a thin batch costs nearly as much as a full one: while fewer than this share of the open requests have
a call, a forward waits for others, no longer than so many forwards take."""


class LocalEngine:
    """A `Generator` over `model`, whose weights it shares.

    max_len: ids of a request, generated ones included. max_requests: requests that are computed side by side; further
    ones wait. kv_memory_mb: MiB for keys and values, which hold more requests than are computed; 0 for what twice
    max_requests of max_len need, at most a quarter of the free memory, without `reserved` bytes, which others on the
    device have yet to allocate. tokenizer: needed for stop strings alone.

    `decoding` names the decoder and the reason; it is logged too (`retcon.engine.local.decoder`, INFO). With more than
    one thread on a CPU, torch's are made to sleep while they wait (see `disable_openmp_spin`).

    Raises EngineError for a model that sees what follows a token or has fewer than max_len positions, or a budget that
    does not hold one request. After a change of the weights call `invalidate`. One event loop at a time: a call from a
    new loop forgets the requests of the old one, whose callers are gone.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_len: int,
        max_requests: int = 128,
        kv_memory_mb: int = 0,
        reserved: int = 0,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        limit_kernels()
        keep_pages()
        check_model(model, max_len)
        if model.device.type == "cuda":
            disable_cudnn()
        if model.device.type == "cpu" and torch.get_num_threads() > 1:
            disable_openmp_spin()
        if max_requests < 1:
            raise EngineError(f"max_requests is {max_requests}; at least 1 is needed")
        self.model, self.max_len, self.max_requests, self.tokenizer = model, max_len, max_requests, tokenizer
        self.stats = EngineStats()
        with _evaluating(model):
            self._decoder: Decoder = choose_decoder(model, max_len, reserved)
        if model.device.type == "cuda" and isinstance(self._decoder, PackedDecoder):
            self._decoder = GraphDecoder(self._decoder, CudaRecorder(model.device), partial(_addresses, model))
        memory = Memory(
            self._decoder.layout,
            device=model.device,
            max_len=max_len,
            max_slots=max_requests,
            budget=0,
            keeps=resting_bytes(model.device),
        )
        least = memory.slot_bytes(slot_capacity(max_len, max_len))
        self._memory = memory
        memory.budget = kv_memory_mb * 2**20 or kv_budget(least, max_requests, free_memory(model.device) - reserved)
        if memory.budget < least:
            raise EngineError(
                f"kv_memory_mb is {kv_memory_mb}, but one request of max_len {max_len} needs {-(-least // 2**20)} MiB; "
                "raise it or lower max_len"
            )
        self.stats.kv_budget = memory.budget
        self._vocab: int = model.config.get_text_config().vocab_size
        self._scheduler = Scheduler(
            self._decoder, memory, rows=max_requests, vocabulary=self._vocab, device=model.device, stats=self.stats
        )
        self._requests: dict[str, Request] = {}
        self._aside: set[str] = set()
        self._arrivals = 0
        self._closed = False
        self._held = False  # whether nothing may be computed for now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Task[None] | None = None
        self._starving: float | None = None  # since when no request has had a call
        self._company: asyncio.Future[None] | None = None  # resolved when a call arrives
        self._forward_seconds = 0.0  # a running mean

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`, (T,), T < max_len. Generation also ends, with stop `length`, at max_len ids in all.

        Raises EngineError for ids or parameters that cannot be served; other requests are not affected.
        """
        ids = tuple(ids)
        self._check_ids(request_id, ids)
        if len(ids) >= self.max_len:
            raise EngineError(
                f"request {request_id}: {len(ids)} tokens leave no room to generate within max_len {self.max_len}; "
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
        """Return log-probs of ids[start:], (T - start,) nats, untempered; 1 ≤ start ≤ T ≤ max_len.

        Raises EngineError as `generate` does.
        """
        ids = tuple(ids)
        self._check_ids(request_id, ids)
        if len(ids) > self.max_len:
            raise EngineError(
                f"request {request_id}: {len(ids)} tokens are more than max_len {self.max_len}; "
                "shorten the history or raise max_len"
            )
        if not 1 <= start <= len(ids):
            raise EngineError(f"request {request_id}: start {start} is outside 1…{len(ids)}")
        done: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        return await self._answer(request_id, ScoreCall(ids, start, done), done)

    async def release(self, request_id: str) -> None:
        """End a request and free its slot. Unknown ids are ignored."""
        request = self._requests.pop(request_id, None)
        self._aside.discard(request_id)
        if request is not None:
            self._scheduler.remove(request)
            request.fail(EngineError(f"request {request_id} was released while it waited"))
        if not self._requests:
            self._starving = None

    def set_aside(self, request_id: str) -> None:
        """Keep a request's slot, but let no forward wait for it."""
        if request_id in self._requests:
            self._aside.add(request_id)

    def fork(self, request_id: str, source_id: str, length: int) -> None:
        """Copy a request's keys and values to a new one (`ForkableEngine`)."""
        source = self._requests.get(source_id)
        if source is None or request_id in self._requests:
            return
        self._arrivals += 1
        request = self._requests[request_id] = Request(request_id, self._arrivals)
        with torch.inference_mode():
            self._scheduler.fork(request, source, length)

    @property
    def decoding(self) -> str:
        """The decoder, and the reason for it."""
        return self._decoder.about

    def invalidate(self) -> None:
        """Drop all keys and values; open requests stay open. A GPU keeps some slabs (see `resting_bytes`)."""
        if self._scheduler.computing:
            raise EngineError("the weights must not change while requests are being computed; await them first")
        self._forget()

    @property
    def invariance(self) -> Invariance:
        """Batch invariance, as tried with torch's threads of the last forward."""
        return self._decoder.invariance

    @property
    def version(self) -> int | None:
        """Version of the weights (`CarriesOver`)."""
        return self._scheduler.version

    @version.setter
    def version(self, version: int | None) -> None:
        self._scheduler.version = version

    @asynccontextmanager
    async def suspended(self) -> AsyncIterator[None]:
        """Suspend forwards for a block (`CarriesOver`), after the current one; calls wait meanwhile. Keys and values of
        requests under way are computed anew afterwards."""
        self._held = True
        try:
            if self._server is not None and not self._server.done():
                await asyncio.wait([self._server])
            self._scheduler.suspend()
            yield
        finally:
            self._held = False
            if self._scheduler.busy:
                self._wake()

    def close(self) -> None:
        """Close the engine and free its memory; waiting and later calls raise EngineError."""
        self._closed = True
        if self._server is not None:
            self._server.cancel()
        self._memory.keeps = 0
        self._fail(EngineError("the engine was closed"))

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
            raise EngineError(f"request {request_id}: no tokens to continue")
        if min(ids) < 0 or max(ids) >= self._vocab:
            raise EngineError(
                f"request {request_id}: ids {min(ids)}…{max(ids)} are outside the model's vocabulary of {self._vocab}"
            )

    async def _answer(self, request_id: str, call: GenerateCall | ScoreCall, done: asyncio.Future[T]) -> T:
        """Wait for the call's answer. Cancelling the caller ends the request."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._drop_all()
            self._server, self._loop = None, loop
        self._arrivals += 1
        self._aside.discard(request_id)
        request = self._requests.get(request_id)
        if request is None:
            request = self._requests[request_id] = Request(request_id, self._arrivals)
        elif request.waiting:
            raise EngineError(f"request {request_id} already waits for an answer; one call at a time")
        if self._starving is not None:
            self.stats.starved += time.perf_counter() - self._starving
            self._starving = None
        request.call = call
        self._scheduler.add(request)
        if self._company is not None and not self._company.done():
            self._company.set_result(None)
        self._wake()
        try:
            return await done
        except asyncio.CancelledError:
            if self._requests.get(request_id) is request:
                del self._requests[request_id]
                self._scheduler.remove(request)
            raise

    def _wake(self) -> None:
        """Start the scheduler if it does not run."""
        if self._loop is None or self._closed or self._held or (self._server is not None and not self._server.done()):
            return
        self._server = self._loop.create_task(self._serve())
        self._server.add_done_callback(self._served)

    def _served(self, server: asyncio.Task[None]) -> None:
        """Pass a fault of the model on to all waiting calls."""
        if server.cancelled():
            self._fail(EngineError("the engine's task was cancelled"))
        elif (error := server.exception()) is not None:
            failure = EngineError(f"the model failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)
        elif self._scheduler.busy:
            self._wake()

    def _fail(self, error: EngineError) -> None:
        for request in list(self._requests.values()):
            request.fail(error)
        self._drop_all()

    def _drop_all(self) -> None:
        for request in self._requests.values():
            self._scheduler.remove(request)
        self._requests.clear()
        self._aside.clear()
        self._forget()
        self._starving = None

    def _forget(self) -> None:
        self._scheduler.forget()
        self._decoder.forget()

    async def _serve(self) -> None:
        """Run forwards while requests are open; the event loop gets its turn in between."""
        await self._quiet()
        with _evaluating(self.model):
            while self._scheduler.busy and not self._held:
                await self._gather()
                began = time.perf_counter()
                with torch.inference_mode():
                    self._scheduler.step()
                self._forward_seconds += 0.2 * (time.perf_counter() - began - self._forward_seconds)
                await asyncio.sleep(0)
        self._starving = time.perf_counter() if self._requests and not self._held else None

    async def _gather(self) -> None:
        """Wait a little for more calls where most requests are with their callers."""
        began = time.perf_counter()
        left = GATHER_FORWARDS * self._forward_seconds if self.model.device.type == "cpu" else 0.0
        while left > 0 and self._scheduler.present < GATHER_SHARE * min(self._expected, self.max_requests):
            self._company = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._company], timeout=left)
            left = began + GATHER_FORWARDS * self._forward_seconds - time.perf_counter()
        self.stats.gathered += time.perf_counter() - began

    @property
    def _expected(self) -> int:
        """Number of open requests that are computed, or soon will be."""
        return len(self._requests) - len(self._aside)

    async def _quiet(self) -> None:
        quiet, seen = 0, self._arrivals
        while quiet < QUIET_PASSES:
            await asyncio.sleep(0)
            quiet, seen = (quiet + 1 if seen == self._arrivals else 0), self._arrivals


def _addresses(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the addresses of all weights and buffers."""
    return tuple(tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()))


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Turn dropout off for a block; every module's mode is restored afterwards."""
    training = [module for module in model.modules() if module.training]
    model.train(False)
    try:
        yield
    finally:
        for module in training:
            module.training = True
