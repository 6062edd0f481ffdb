"""One decode phase: the rows of a batch, all at the same number of generated ids, until each has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from retcon.core.errors import EngineError
from retcon.engine.cache import SlotCache, Step
from retcon.engine.forward import additive, decode
from retcon.engine.requests import GenerateCall, Request
from retcon.engine.sampling import RandomStream, Sampler
from retcon.engine.types import Generation

COMPACT_AT = 0.8
"""Rows that have ended leave the batch when at most this share is alive: less often costs forwards of dead rows, more
often costs moving keys and values."""


@dataclass(slots=True, eq=False)
class Row:
    """A row of the batch and what it has generated."""

    request: Request
    call: GenerateCall
    stops: frozenset[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    alive: bool = True
    stopped: bool = False

    def take(self, token: int, logprob: float, sampling_logprob: float) -> None:
        """Add a generated id."""
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.sampling_logprobs.append(sampling_logprob)
        strings = self.call.strings
        self.stopped = token in self.stops or (strings is not None and strings.completed_by(token))

    def end(self) -> None:
        """Hand the result to the caller, unless it is gone, and note what is cached: all but the last id."""
        self.alive = False
        self.request.cached = (*self.call.ids, *self.ids[:-1])
        if self.call.done.done():
            return
        if any(map(math.isnan, self.logprobs)):
            self.call.done.set_exception(
                EngineError(f"request {self.request.id}: the model's log-probs are nan; its weights are broken")
            )
            return
        self.call.done.set_result(
            Generation(
                ids=tuple(self.ids),
                logprobs=tuple(self.logprobs),
                stop="stop" if self.stopped else "length",
                sampling_logprobs=tuple(self.sampling_logprobs),
            )
        )


class DecodeBatch:
    """requests[i] lies in slot i and is prefilled with the ids of calls[i]; logits: (B, V) after the last of them.

    Alternate `sample` and `forward` until `alive` is 0. A row that ends is answered at once and stays in the batch,
    computing nothing of use, until the next compaction.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        cache: SlotCache,
        requests: Sequence[Request],
        calls: Sequence[GenerateCall],
        logits: Tensor,
    ) -> None:
        self._model, self._cache, self._logits = model, cache, logits
        device = logits.device
        self._rows = [Row(r, c, frozenset(c.params.stop_ids)) for r, c in zip(requests, calls, strict=True)]
        self.alive, self._taken = len(calls), 0
        self._sampler = Sampler([c.params for c in calls], device)
        self._streams = [RandomStream(c.params.seed) for c in calls]
        self._positions = torch.tensor([len(c.ids) for c in calls], device=device)
        self._advance = torch.ones_like(self._positions)
        reach = torch.arange(max(len(c.ids) + c.limit for c in calls), device=device)
        self._mask = additive(reach > self._positions[:, None], self._model.dtype)[:, None, None]
        self._range = torch.arange(len(calls), device=device)
        self._next = self._positions

    def sample(self) -> int:
        """Draw the next id of every row; answer those that end. Returns how many ids were generated."""
        uniform = torch.tensor([s.draw() for s in self._streams], dtype=torch.float32, device=self._logits.device)
        ids, logprobs, sampling = self._sampler(self._logits, uniform)
        self._next = ids
        self._taken += 1
        generated, ended = self.alive, []
        drawn = zip(self._rows, ids.tolist(), logprobs.tolist(), sampling.tolist(), strict=True)
        for index, (row, token, logprob, sampled) in enumerate(drawn):
            if not row.alive:
                continue
            row.take(token, logprob, sampled)
            if row.stopped or self._taken == row.call.limit or row.call.done.done():
                row.end()
                ended.append(index)
        self.alive -= len(ended)
        if ended:
            self._advance[ended] = 0
        return generated

    def forward(self) -> None:
        """Feed the ids that were drawn last."""
        if self.alive <= COMPACT_AT * len(self._rows):
            self._compact()
        # Every living row has generated the same number of ids; those that ended may lie beyond, unseen by anyone.
        length = max(len(row.call.ids) for row in self._rows if row.alive) + self._taken
        access = Step(rows=self._range, positions=self._positions, length=length)
        self._logits = decode(self._model, self._cache, self._next, access, self._mask[..., :length])
        self._positions = self._positions + self._advance
        self._mask[self._range, 0, 0, self._positions] = 0

    def _compact(self) -> None:
        """Exchange living rows at the end with ended ones before them, then cut the batch to the living."""
        rows, kept = self._rows, self.alive
        holes = [i for i in range(kept) if not rows[i].alive]
        movers = [i for i in range(kept, len(rows)) if rows[i].alive]
        self._cache.swap(holes, movers, max(len(row.call.ids) + len(row.ids) for row in rows))
        order = list(range(len(rows)))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole], order[mover] = mover, hole
        for slot, index in enumerate(order):
            rows[index].request.slot = slot
        self._rows = [rows[index] for index in order[:kept]]
        keep = torch.tensor(order[:kept], device=self._positions.device)
        self._sampler.select(order[:kept])
        self._streams = [self._streams[index] for index in order[:kept]]
        self._mask = self._mask[keep]
        self._positions, self._advance, self._next = self._positions[keep], self._advance[keep], self._next[keep]
        self._range = self._range[:kept]
