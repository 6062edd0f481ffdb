"""A model's own forward and cache, where no packed forward applies.

These are models with recurrent states, sinks, windows or caps.
Each request has a cache of transformers'. Requests that feed equally many ids after equally many go through one
forward. A rollback crops the cache where every layer of it keeps all keys and values; otherwise, and where the model
continues a cache by one id at a time at most, the history is computed again from its first id.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from retcon.core.errors import EngineError
from retcon.engine.local.forward import CHUNK_LOGITS, FORWARD_IDS, Chunk, Invariance, Output, Step
from retcon.engine.local.slabs import Slab

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig, PreTrainedModel

CACHES = ("past_key_values", "cache_params")
"""What models call the cache in their forward and in its result."""
MEASURED = (8, 24)
"""Ids of the two histories whose caches are measured."""


def _plain_cache(_: PretrainedConfig) -> Cache:
    from transformers import DynamicCache

    return DynamicCache()


def _cache_by_config(config: PretrainedConfig) -> Cache:
    from transformers import DynamicCache

    return DynamicCache(config=config)


@dataclass(frozen=True, slots=True)
class CacheUse:
    """One use of a model's cache. about: description. cache: makes an empty one; None: no cache. chunks: whether
    several ids at once continue it. exact: whether a comparison must be exact: some models lose recurrent states that
    way, which rounding would hide. positions: whether the model is given them, as some hybrids begin at 0 again."""

    about: str
    cache: Callable[[PretrainedConfig], Cache] | None
    chunks: bool = False
    exact: bool = False
    positions: bool = False


CACHE_USES = (
    CacheUse("its cache is cropped at a rollback", _plain_cache, chunks=True),
    CacheUse("a rollback computes the history again", _cache_by_config, chunks=True, exact=True, positions=True),
    CacheUse("each turn computes the history again", _cache_by_config, positions=True),
    CacheUse("each token computes the history again", None),
)
"""The quickest first. A cache without the model's configuration keeps the keys and values of every layer, of windows
too, and the model's masks hide those outside."""


@dataclass(slots=True, eq=False)
class History:
    """Ids in a slot; the first `done` lie in the cache of `batch`, in the row of its place in `batch.rows`."""

    ids: list[int] = field(default_factory=list)
    done: int = 0
    batch: Batch | None = None

    def start_anew(self) -> None:
        """Drop the cache."""
        self.done, self.batch = 0, None

    def crop(self, length: int) -> None:
        """Keep the first `length` ids, and their cache if possible."""
        del self.ids[length:]
        if self.done > length:
            cache = self.alone()
            if length and cache is not None and _is_croppable(cache):
                cache.crop(length - self.done)
                self.done = length
            else:
                self.start_anew()

    def alone(self) -> Cache | None:
        """Split the batch and return the cache of this history alone."""
        if self.batch is None:
            return None
        if len(self.batch.rows) > 1:
            whole = self.batch
            for number, history in enumerate(whole.rows):
                if history.batch is whole:
                    history.batch = Batch(_row(whole.cache, number), [history])
        return self.batch.cache

    def copy(self, length: int) -> History:
        """Copy the history of the first `length` ids."""
        cache = self.alone()
        other = History(list(self.ids), self.done)
        if cache is not None:
            other.batch = Batch(_row(cache, 0), [other])
        other.crop(length)
        return other


@dataclass(slots=True, eq=False)
class Batch:
    """A cache, and the histories in its rows."""

    cache: Cache
    rows: Sequence[History]


def _is_croppable(kept: Cache) -> bool:
    """Return whether all layers keep all keys and values."""
    from transformers.cache_utils import DynamicLayer

    return all(type(layer) is DynamicLayer for layer in kept.layers)


@cache
def _cache_classes() -> tuple[type, ...]:
    """Return the classes of which a cache consists."""
    from transformers.cache_utils import Cache, CacheLayerMixin, DummyLayer, LinearAttentionCacheLayerMixin

    return Cache, CacheLayerMixin, LinearAttentionCacheLayerMixin, DummyLayer


def _row(kept: Cache, number: int) -> Cache:
    """Copy one row."""
    row: Cache = _join([kept], lambda parts: parts[0][number : number + 1].clone())
    return row


class _Mismatch(Exception):
    """Caches that cannot share a forward: tensors that are not by row, or differ in shape."""


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    if len({part.shape for part in parts}) > 1 or len(parts[0]) != 1:
        raise _Mismatch
    return torch.cat(list(parts))


def _join(parts: Sequence[Any], join: Callable[[Sequence[Tensor]], Tensor]) -> Any:
    """Join caches of equally many ids, or the same part of each, by joining their tensors."""
    first = parts[0]
    if isinstance(first, Tensor):
        return join(parts) if first.ndim and first.numel() else first
    if isinstance(first, dict):
        return {key: _join([part[key] for part in parts], join) for key in first}
    if isinstance(first, list):
        return [_join(some, join) for some in zip(*parts, strict=True)]
    if not isinstance(first, _cache_classes()):
        return first
    made = copy.copy(first)
    for name in vars(first):
        setattr(made, name, _join([getattr(part, name) for part in parts], join))
    return made


def _cache_bytes(kept: Cache | None) -> int:
    """Return the bytes of a cache's tensors."""
    sizes: list[int] = []
    if kept is not None:
        _join([kept], lambda parts: sizes.append(parts[0].nbytes) or parts[0])  # type: ignore[func-returns-value]
    return sum(sizes)


class HistorySlab(Slab):
    """A slab whose slots hold histories."""

    def __init__(self, capacity: int, slots: int) -> None:
        self.capacity, self.slots = capacity, slots
        self.places = {}
        self.histories: dict[int, History] = {}

    def show(self, slot: int, length: int) -> None:
        if slot in self.histories:
            self.histories[slot].crop(length)

    def wipe(self, slot: int) -> None:
        self.histories.pop(slot, None)

    def copy_from(self, source: Slab, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        assert isinstance(source, HistorySlab)
        for old, new, length in zip(sources, targets, lengths, strict=True):
            self.histories[new] = source.histories[old].copy(length)

    def permute(self, here: Sequence[int], there: Sequence[int]) -> None:
        held = {slot: self.histories.pop(slot) for slot in here if slot in self.histories}
        self.histories |= {to: held[source] for to, source in zip(here, there, strict=True) if source in held}


class Histories:
    """The `Layout` of history slabs, with measured sizes."""

    def __init__(self) -> None:
        self._id_bytes, self._fixed_bytes = 8.0, 0.0

    def slot_bytes(self, capacity: int) -> int:
        return int(self._fixed_bytes + capacity * self._id_bytes)

    def slab(self, capacity: int, slots: int) -> HistorySlab:
        return HistorySlab(capacity, slots)

    def measure(self, sizes: Sequence[int]) -> None:
        """Set the sizes by the bytes of caches of MEASURED ids."""
        grown = (sizes[1] - sizes[0]) / (MEASURED[1] - MEASURED[0])
        self._id_bytes, self._fixed_bytes = 8 + grown, max(0.0, sizes[0] - grown * MEASURED[0])


@dataclass(frozen=True, slots=True)
class _Job:
    """One request's feed: `history` up to its last id; the last `keep` need logits."""

    history: History
    keep: int

    @property
    def alike(self) -> tuple[int, int, int]:
        """Key of jobs that can share a forward."""
        return self.history.done, len(self.history.ids), self.keep


class OwnForward:
    """A `Decoder` by the model's own forward and cache."""

    def __init__(self, model: PreTrainedModel, way: CacheUse, reason: str) -> None:
        self._model, self._way = model, way
        self.about = f"the model's own forward: {reason}; {way.about}"
        self.layout, self.invariance = Histories(), Invariance()
        self._vocabulary: int = model.config.get_text_config().vocab_size
        known = inspect.signature(model.forward).parameters
        self._cached = next((name for name in CACHES if name in known), None) if way.cache else None
        self._keeps = "logits_to_keep" in known
        self._positions = way.positions and "position_ids" in known
        if way.cache and self._cached is None:
            raise EngineError("its forward takes no cache")

    def feed(self, steps: Sequence[Step], chunks: Sequence[Chunk], device: torch.device) -> Output:
        """Compute steps and chunks, in forwards of jobs with one key."""
        jobs = [self._job(step, step.length, len(step.ids)) for step in steps]
        jobs += [self._job(chunk, chunk.start, chunk.keep) for chunk in chunks]
        alike: dict[tuple[int, int, int], list[int]] = {}
        for number, job in enumerate(jobs):
            alike.setdefault(job.alike, []).append(number)
        found: dict[int, Tensor] = {}
        for (done, length, keep), numbers in alike.items():
            for some in self._fitting(numbers, length - done):
                histories = [jobs[n].history for n in some]
                try:
                    logits: Sequence[Tensor] | Tensor = self._forward(histories, keep, device)
                except _Mismatch:
                    logits = [self._forward([history], keep, device)[0] for history in histories]
                found |= dict(zip(some, logits, strict=True))
        kept = torch.cat([found[n] for n in range(len(jobs))])
        return Output(kept, lambda states: states, kept.shape[-1])

    def feeds(self, decoding: bool, full: bool) -> bool:
        """Return True: whatever waits goes with the next forward."""
        return True

    def refresh(self) -> None:
        """Do nothing: the model itself holds the weights."""

    def forget(self) -> None:
        """Do nothing: caches go with their slabs."""

    def _job(self, fed: Step | Chunk, start: int, keep: int) -> _Job:
        slab = fed.place.slab
        assert isinstance(slab, HistorySlab)
        history = slab.histories[fed.place.slot] if start else History()
        slab.histories[fed.place.slot] = history
        history.ids += fed.ids
        if self._cached is None or (not self._way.chunks and len(history.ids) - history.done > 1):
            history.start_anew()
        return _Job(history, keep)

    def _fitting(self, numbers: Sequence[int], length: int) -> Iterator[Sequence[int]]:
        """Yield jobs of `length` ids in groups that fit one forward."""
        most = FORWARD_IDS if self._keeps else min(FORWARD_IDS, CHUNK_LOGITS // self._vocabulary)
        rows = max(1, most // length)
        for first in range(0, len(numbers), rows):
            yield numbers[first : first + rows]

    def _forward(self, histories: Sequence[History], keep: int, device: torch.device) -> Tensor:
        """Return logits (B, keep, V) after the last ids of histories of one length, equally many of them cached."""
        done = histories[0].done
        ids = torch.tensor([history.ids[done:] for history in histories], device=device)
        options: dict[str, Any] = {"logits_to_keep": max(keep, 1)} if self._keeps else {}
        if self._cached is not None:
            options[self._cached] = self._cache_of(histories)
        if self._positions:
            positions = torch.arange(done, len(histories[0].ids), device=device)
            options["position_ids"] = positions.expand(len(histories), -1)
        logits: Tensor = self._model(input_ids=ids, use_cache=self._cached is not None, **options).logits
        for history in histories:
            history.done = len(history.ids)
        return logits[:, logits.shape[1] - keep :]

    def _cache_of(self, histories: Sequence[History]) -> Cache:
        batch = histories[0].batch
        if batch is None or list(batch.rows) != list(histories) or any(h.batch is not batch for h in histories):
            caches = [history.alone() for history in histories]
            if caches[0] is None and self._way.cache is not None:
                batch = Batch(self._way.cache(self._model.config), histories)
            else:
                batch = Batch(_join(caches, _concatenate), histories)
            for history in histories:
                history.batch = batch
        return batch.cache

    def measure(self) -> None:
        """Measure the bytes of histories for the layout."""
        if self._cached is None:
            return
        sizes = []
        for length in MEASURED:
            history = History([0] * length)
            self._forward([history], 1, self._model.device)
            sizes.append(_cache_bytes(history.alone()))
        self.layout.measure(sizes)
