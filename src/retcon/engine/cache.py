"""Keys and values of many requests, each in a slot of one tensor per layer: a transformers `Cache`.

A request keeps its slot from turn to turn. How the next forward reads and writes the slots is set beforehand as
`SlotCache.access`: a `Step` (one id in each of the first slots) or a `Chunk` (ragged stretches in any slots).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True, slots=True)
class Step:
    """One id in each of the slots 0…B-1, which makes reading a view and no copy.

    rows: (B,) = 0…B-1. positions: (B,) where each row's id goes. length: positions to attend over.
    """

    rows: Tensor
    positions: Tensor
    length: int

    def store(self, slots: Tensor, states: Tensor) -> Tensor:
        slots[self.rows, :, self.positions] = states[:, :, 0]
        return slots[: len(states), :, : self.length]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Ragged stretches of ids, padded on the right to (R, T).

    slots: (R,). valid: (R, T) bool, where there is an id. token_slots, positions: (N,) where each valid id goes, in
    row-major order. length: positions to attend over.
    """

    slots: Tensor
    valid: Tensor
    token_slots: Tensor
    positions: Tensor
    length: int

    def store(self, slots: Tensor, states: Tensor) -> Tensor:
        slots[self.token_slots, :, self.positions] = states.transpose(1, 2)[self.valid]
        return slots[:, :, : self.length].index_select(0, self.slots)


@dataclass(frozen=True, slots=True)
class FreshChunk(Chunk):
    """A chunk whose rows all start at position 0: there is nothing to read back."""

    def store(self, slots: Tensor, states: Tensor) -> Tensor:
        slots[self.token_slots, :, self.positions] = states.transpose(1, 2)[self.valid]
        return states


class SlotLayer(CacheLayerMixin):
    """keys, values: (slots, kv heads, max_len, head dim), allocated when the first forward shows their shape."""

    is_sliding = False
    keys: Tensor
    values: Tensor

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        slots, length = self._cache.slots, self._cache.max_len
        # Zeros, not empty: what is masked out is still multiplied by a weight of zero, and 0 · nan is nan.
        self.keys = key_states.new_zeros(slots, key_states.shape[1], length, key_states.shape[3])
        self.values = value_states.new_zeros(slots, value_states.shape[1], length, value_states.shape[3])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        access = self._cache.access
        return access.store(self.keys, key_states), access.store(self.values, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.access.length, 0

    def get_seq_length(self) -> int:
        return self._cache.access.length

    def get_max_length(self) -> int:
        return self._cache.max_len


class SlotCache(Cache):
    """`slots` requests of at most `max_len` ids each. `access` must be set before every forward."""

    access: Step | Chunk

    def __init__(self, layers: int, slots: int, max_len: int) -> None:
        self.slots, self.max_len = slots, max_len
        self._slot_layers = [SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=[*self._slot_layers])

    def _tensors(self) -> list[Tensor]:
        return [t for layer in self._slot_layers if layer.is_initialized for t in (layer.keys, layer.values)]

    def swap(self, first: Sequence[int], second: Sequence[int], length: int) -> None:
        """Exchange slots first[i] and second[i] (all distinct), up to `length` positions."""
        if not first:
            return
        here, there = torch.tensor([*first, *second]), torch.tensor([*second, *first])
        for tensor in self._tensors():
            used = tensor[:, :, :length]
            used[here] = used[there]

    def copy(self, source: Sequence[int], target: Sequence[int], length: int) -> None:
        """Copy slot source[i] to slot target[i], up to `length` positions."""
        if not source:
            return
        for tensor in self._tensors():
            used = tensor[:, :, :length]
            used[torch.tensor(target)] = used[torch.tensor(source)]
