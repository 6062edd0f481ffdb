"""What the local engine computes: a phase of scores, or a phase of generations, over requests that lie in slots.

The coroutines give the event loop a turn after every forward, so that the tools of others are served meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from retcon.engine.cache import SlotCache
from retcon.engine.decode import DecodeBatch
from retcon.engine.forward import Stretch, chunks, prefill
from retcon.engine.requests import GenerateCall, Request, ScoreCall, common_prefix


@dataclass(slots=True)
class EngineStats:
    """What was computed so far. Ids: generated; fed in prefills; scored; found cached; copied from an equal prompt.

    steps: decode forwards. seconds: wall time in the model, the sampler and their bookkeeping.
    """

    generated: int = 0
    prefilled: int = 0
    scored: int = 0
    reused: int = 0
    copied: int = 0
    steps: int = 0
    seconds: float = 0.0


class Phases:
    """The model and its cache of `slots` requests. running: whether a phase is under way."""

    def __init__(self, model: PreTrainedModel, slots: int, max_len: int, pad_id: int) -> None:
        self._model, self._pad_id = model, pad_id
        self._cache = SlotCache(model.config.get_text_config().num_hidden_layers, slots, max_len)
        self.stats = EngineStats()
        self.running = False

    def drop(self) -> None:
        """Give the memory of the keys and values back; no request may count on them any more."""
        self._cache = SlotCache(len(self._cache), self._cache.slots, self._cache.max_len)

    def move(self, requests: Sequence[Request], slots: Sequence[int]) -> None:
        """Move each request to the slot of the same index; these slots are free."""
        with self._compute():
            longest = max((len(r.cached) for r in requests), default=0)
            self._cache.copy([r.slot for r in requests], slots, longest)
        for request, slot in zip(requests, slots, strict=True):
            request.slot = slot

    async def score(self, requests: Sequence[Request]) -> None:
        """Answer the ScoreCall of each request."""
        calls = {r: r.call for r in requests if isinstance(r.call, ScoreCall)}
        # The id before `start` predicts ids[start]; the last id is fed for its keys and values.
        stretches = [self._stretch(r, c.ids, c.start - 1, len(c.ids) - c.start + 1) for r, c in calls.items()]
        with self._evaluating():
            for chunk in chunks(stretches):
                chosen = [(requests[i], calls[requests[i]]) for i in chunk]
                with self._compute():
                    logits = self._prefill([stretches[i] for i in chunk])
                    nexts = torch.tensor([t for _, c in chosen for t in (*c.ids[c.start :], 0)], device=logits.device)
                    values = logits.float().log_softmax(-1).gather(1, nexts[:, None]).squeeze(1).tolist()
                at = 0
                for request, call in chosen:
                    count = len(call.ids) - call.start
                    request.cached = call.ids
                    self.stats.scored += count
                    if not call.done.done():
                        call.done.set_result(values[at : at + count])
                    at += count + 1
                await asyncio.sleep(0)

    async def generate(self, requests: Sequence[Request]) -> None:
        """Answer the GenerateCall of each request; requests[i] lies in slot i."""
        calls = [r.call for r in requests if isinstance(r.call, GenerateCall)]
        with self._evaluating():
            logits = await self._prompts(requests, calls)
            with self._compute():
                batch = DecodeBatch(self._model, self._cache, requests, calls, logits)
            while True:
                with self._compute():
                    self.stats.generated += batch.sample()
                    if not batch.alive:
                        return
                    batch.forward()
                self.stats.steps += 1
                await asyncio.sleep(0)

    async def _prompts(self, requests: Sequence[Request], calls: Sequence[GenerateCall]) -> Tensor:
        """Prefill every request; equal prompts with nothing cached once. Returns (B, V): logits after the last id."""
        leaders: dict[tuple[int, ...], int] = {}
        source, feeds, stretches = list(range(len(calls))), [], []
        for index, (request, call) in enumerate(zip(requests, calls, strict=True)):
            if common_prefix(request.cached, call.ids) == 0:
                source[index] = leaders.setdefault(call.ids, index)
            if source[index] == index:
                feeds.append(index)
                stretches.append(self._stretch(request, call.ids, len(call.ids) - 1, 1))
        parts: list[Tensor] = []
        order: list[int] = []
        for chunk in chunks(stretches):
            with self._compute():
                parts.append(self._prefill([stretches[i] for i in chunk]))
            order.extend(feeds[i] for i in chunk)
            for i in chunk:
                requests[feeds[i]].cached = calls[feeds[i]].ids
            await asyncio.sleep(0)
        with self._compute():
            for ids, leader in leaders.items():
                copies = [i for i, s in enumerate(source) if s == leader != i]
                self._cache.copy([leader] * len(copies), copies, len(ids))
                self.stats.copied += len(ids) * len(copies)
                for i in copies:
                    requests[i].cached = ids
            place = {index: row for row, index in enumerate(order)}
            return torch.cat(parts)[[place[s] for s in source]]

    def _stretch(self, request: Request, ids: tuple[int, ...], at_most: int, keep: int) -> Stretch:
        """What must be fed of `ids`: all after the longest common prefix with what is cached, or after at_most ids."""
        start = min(common_prefix(request.cached, ids), at_most)
        request.cached = ids[:start]  # a phase that is cut off leaves no more than this behind
        self.stats.reused += start
        self.stats.prefilled += len(ids) - start
        return Stretch(request.slot, start, ids[start:], keep)

    def _prefill(self, rows: Sequence[Stretch]) -> Tensor:
        return prefill(self._model, self._cache, rows, self._pad_id)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """The model without dropout; every module's mode is restored afterwards."""
        training = [module for module in self._model.modules() if module.training]
        self._model.train(False)
        self.running = True
        try:
            yield
        finally:
            self.running = False
            for module in training:
                module.training = True

    @contextmanager
    def _compute(self) -> Iterator[None]:
        """A stretch of computing without await: inference mode is the thread's, and no other task may run in it."""
        start = time.perf_counter()
        with torch.inference_mode():
            yield
        self.stats.seconds += time.perf_counter() - start
