"""Memory of the device, and of keys and values: slots in slabs, within a budget.

A request has one slot, a contiguous range of positions, so that decoding reads it as a view. Slots come in classes of
capacity; a slab holds slots of one class and can be freed when none is taken, for slabs of another class. A request
that outgrows its slot moves to a larger one: the copies add up to no more than a few times its length.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Protocol

import torch
from torch import Tensor

from retcon.core.machine import available_memory

KERNELS = "256"
"""Kernels in oneDNN's cache, by default 1,024: one for each shape, and batches have many. All of them together take
hundreds of MiB; making one anew takes less than running it."""


@cache
def limit_kernels() -> None:
    """Limit oneDNN's cache to KERNELS kernels; the environment takes precedence. It reads the limit when it makes its
    first kernel, which happens here: this does nothing in a process whose torch has computed before."""
    ours = [n for n in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY") if n not in os.environ]
    os.environ.update(dict.fromkeys(ours, KERNELS))
    try:
        if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            torch.ops.mkldnn._linear_pointwise(torch.ones(1, 1), torch.ones(1, 1), None, "none", [], "")
    finally:
        for name in ours:
            del os.environ[name]


@cache
def keep_pages() -> None:
    """Let glibc keep up to 64 MiB of freed memory: new pages cost more than most operations on them. It keeps them once
    a block of nearly 32 MiB was freed, as here. Other libraries and thresholds in the environment are not affected."""
    torch.empty(2**25 - 2**16, dtype=torch.uint8)


@cache
def disable_cudnn() -> None:
    """Disable attention by cuDNN, torch's first choice on Hopper and Blackwell: it makes a plan for each shape, in tens
    to hundreds of ms, and nearly every forward has new shapes."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def resting_bytes(device: torch.device) -> int:
    """Return the bytes of slabs that outlast their keys and values: a sixteenth of a GPU's memory, 0 on CPUs. Graphs
    over them would have to be recorded anew in every training step."""
    return int(torch.cuda.mem_get_info(device)[1]) // 16 if device.type == "cuda" else 0


def free_memory(device: torch.device) -> int:
    """Return the free bytes of the device, torch's own reserve included."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    known = available_memory()
    return known if known is not None else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# Attention of many queries by plain matrix products, for bfloat16 on CPUs, where torch's fused kernel is slow.
#
# For 64 to 2,048 tokens it takes two to four times as long.

BLOCK = 128
"""Queries of a row at a time: their scores stay in the cache, and of later keys little is computed in vain."""
SCORES = 2**20
"""Scores at a time, of several rows where they are short."""


def prefers_products(x: Tensor) -> bool:
    """Return whether products beat torch's fused attention for such tensors."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return softmax(q kᵀ · scale + mask) v, (B, H, T, E).

    q: (B, H, T, D); k: (B, KV, L, D); v: (B, KV, L, E). mask: (B or 1, 1, T, L), of q's dtype; None: causal, with
    T = L. Scores have q's dtype; the softmax is computed in float32.
    """
    some = max(1, SCORES // (q.shape[1] * BLOCK * k.shape[2]))
    if len(q) <= some:
        return _attend(q, k, v, mask, scale)
    masks = [mask] * -(-len(q) // some) if mask is None or len(mask) == 1 else mask.split(some)
    return torch.cat([_attend(*x, scale) for x in zip(q.split(some), k.split(some), v.split(some), masks, strict=True)])


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    batch, heads, width, size = q.shape
    shared, keys = k.shape[1:3]
    groups = heads // shared
    q = q * scale
    parts = []
    for first in range(0, width, BLOCK):
        last = min(first + BLOCK, width)
        count, seen = last - first, last if mask is None else keys
        queries = q[:, :, first:last].reshape(batch * shared, groups * count, size)
        some_k, some_v = (x[:, :, :seen].reshape(batch * shared, seen, x.shape[-1]) for x in (k, v))
        scores = torch.bmm(queries, some_k.transpose(1, 2)).view(batch, shared, groups, count, seen)
        if mask is None:
            scores[..., first:].add_(_causal_mask(q.dtype)[:count, :count])
        else:
            scores.add_(mask[:, :, None, first:last])
        weights = scores.softmax(-1).view(batch * shared, groups * count, seen)
        parts.append(torch.bmm(weights, some_v).view(batch, heads, count, -1))
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


@cache
def _causal_mask(dtype: torch.dtype) -> Tensor:
    """Return the causal mask, (BLOCK, BLOCK)."""
    return torch.full((BLOCK, BLOCK), -torch.inf, dtype=dtype).triu_(1)


LINE = 16
"""Slots and chunks of tokens are padded to a multiple of this."""
SLAB_IDS, SLAB_BYTES = 8192, 2**26
"""Most positions of a slab (at least one slot), more where they are few bytes of what is left: small enough to be
freed, large enough for wide batches, as each slab of a forward costs further operations."""
SLAB_SLOTS = 64


def round_up(length: int, line: int = LINE) -> int:
    """Round `length` up to a multiple of `line`."""
    return -(-length // line) * line


def slot_capacity(length: int, most: int) -> int:
    """Return the slot capacity for `length` ids: 64, 128, 256, 512, then four to an octave, up to `most`.

    Few classes make few operations, many waste little attention: the operations count where requests are short. A class
    is a function of the length alone, so that no result depends on which slots are free.
    """
    octave = max(64, 1 << (max(length, 1) - 1).bit_length())
    return min(octave if octave <= 512 else round_up(length, octave >> 3), round_up(most))


def kv_budget(request: int, max_requests: int, free: int) -> int:
    """Return the default bytes for slabs: two `max_requests`, at most a quarter of `free`, at least one request, which
    takes `request` bytes at its longest."""
    return max(request, min(2 * max_requests * request, free // 4))


_NUMBERS = count()


class Slab:
    """`slots` slots of `capacity` positions. keys, values: by layer, (slots, KV, capacity, size).

    mask: (slots, 1, capacity), added to the attention scores of a slot's positions: 0 or the least number. number:
    unique among slabs. slot_bytes: of a slot's keys and values. legible: whether it pays to read them before they are
    multiplied (`DecodeJob`), and they can be read in words of eight bytes.
    """

    def __init__(
        self,
        capacity: int,
        slots: int,
        layers: Mapping[int, tuple[int, int, int]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity, self.slots, self.number = capacity, slots, next(_NUMBERS)
        self.places: dict[int, Place] = {}
        self.blocked = torch.finfo(dtype).min

        def filled(heads: int, size: int) -> Tensor:
            # Zeros, not empty: masked values are still multiplied by a weight of zero, and 0 · nan is nan.
            return torch.zeros(slots, heads, capacity, size, dtype=dtype, device=device)

        self.keys = {layer: filled(heads, key) for layer, (heads, key, _) in layers.items()}
        self.values = {layer: filled(heads, value) for layer, (heads, _, value) in layers.items()}
        self.mask = torch.full((slots, 1, capacity), self.blocked, dtype=dtype, device=device)
        self.slot_bytes = sum(t.nbytes for t in self.tensors) // slots
        self.legible = prefers_products(self.mask) and not any(t.shape[-1] % 4 for t in self.tensors)

    @property
    def full(self) -> bool:
        return len(self.places) == self.slots

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.keys.values(), *self.values.values()]

    def show(self, slot: int, length: int) -> None:
        """Unmask the slot's first `length` positions, and no others."""
        self.mask[slot, ..., :length] = 0
        self.mask[slot, ..., length:] = self.blocked

    def hide(self, slot: int, start: int, end: int) -> None:
        """Mask positions start…end of the slot."""
        self.mask[slot, ..., start:end] = self.blocked

    def wipe(self, slot: int) -> None:
        """Zero a slot: no mask hides values that are not finite."""
        with torch.inference_mode():  # also where a caller is gone, between two forwards
            for tensor in self.tensors:
                tensor[slot] = 0

    def copy_from(self, source: Slab, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy lengths[i] positions of slot sources[i] of `source` to slot targets[i]."""
        old_slots, new_slots = (torch.tensor(slots, device=self.mask.device) for slots in (sources, targets))
        most = max(lengths)
        for old, new in zip(source.tensors, self.tensors, strict=True):
            new[:, :, :most].index_copy_(0, new_slots, old[:, :, :most].index_select(0, old_slots))
        for slot, length in zip(targets, lengths, strict=True):
            self.show(slot, length)

    def permute(self, here: Sequence[int], there: Sequence[int]) -> None:
        """Move slot there[i] to slot here[i], a permutation of slots."""
        to, source = (torch.tensor(slots, device=self.mask.device) for slots in (here, there))
        for tensor in (*self.tensors, self.mask):
            tensor.index_copy_(0, to, tensor.index_select(0, source))  # half the time of tensor[to] = tensor[source]


class Layout(Protocol):
    """The layout of slots: their bytes, and slabs of them."""

    def slot_bytes(self, capacity: int) -> int: ...
    def slab(self, capacity: int, slots: int) -> Slab: ...


class KeysAndValues:
    """The `Layout` of a packed forward. layers: by layer, (heads of keys, key size, value size)."""

    def __init__(self, layers: Mapping[int, tuple[int, int, int]], dtype: torch.dtype, device: torch.device) -> None:
        self._layers, self._dtype, self._device = layers, dtype, device
        # of an id: its keys, its values and its place in the mask
        self._id_bytes = dtype.itemsize * (1 + sum(h * (k + v) for h, k, v in layers.values()))

    def slot_bytes(self, capacity: int) -> int:
        return capacity * self._id_bytes

    def slab(self, capacity: int, slots: int) -> Slab:
        return Slab(capacity, slots, self._layers, self._dtype, self._device)


@dataclass(slots=True, eq=False)
class Place:
    """A slot that a request holds."""

    slab: Slab
    slot: int

    @property
    def capacity(self) -> int:
        return self.slab.capacity

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: the slab, and the slot within it."""
        return id(self.slab), self.slot


class Memory:
    """Slabs within `budget` bytes, of which `keeps` outlast a `drop`. used, peak: bytes of slabs, now and at most."""

    def __init__(
        self,
        layout: Layout,
        *,
        device: torch.device,
        max_len: int,
        max_slots: int,
        budget: int,
        keeps: int = 0,
    ) -> None:
        self._layout, self._device, self.slot_bytes = layout, device, layout.slot_bytes
        self.max_len, self._max_slots, self.budget, self.keeps = max_len, max_slots, budget, keeps
        self.slabs: list[Slab] = []
        self.used = self.peak = 0

    def take(self, length: int) -> Place | None:
        """Take a slot for `length` ids; None if the budget has no room."""
        capacity = self._capacity(length)
        slab = self._with_room(capacity) or self._grow(capacity)
        if slab is None:
            return None
        # The lowest is taken first: what decodes should lie together.
        place = Place(slab, next(slot for slot in range(slab.slots) if slot not in slab.places))
        slab.places[place.slot] = place
        return place

    def scarce(self, length: int, headroom: float) -> bool:
        """Return whether a slot of `length` would cut into the headroom."""
        capacity = self._capacity(length)
        taken = sum(len(slab.places) * self.slot_bytes(slab.capacity) for slab in self.slabs)
        return taken + self.slot_bytes(capacity) > (1 - headroom) * self.budget

    def _capacity(self, length: int) -> int:
        """Return the capacity: on GPUs the greatest for all, if the budget holds as many as are computed. There each
        slab of a forward costs the starts of its kernels, and wasted attention costs little."""
        greatest = slot_capacity(self.max_len, self.max_len)
        whole = self._device.type != "cpu" and self._max_slots * self.slot_bytes(greatest) <= self.budget
        return greatest if whole else slot_capacity(length, self.max_len)

    def give(self, place: Place) -> None:
        """Free a slot; its slab stays until another class needs the room."""
        del place.slab.places[place.slot]

    def copy(self, moves: Iterable[tuple[Place, Place, int]]) -> None:
        """Copy positions 0…n from slot to slot, for each (source, target, n)."""
        by_slabs: dict[tuple[int, int], list[tuple[Place, Place, int]]] = {}
        for move in moves:
            by_slabs.setdefault((id(move[0].slab), id(move[1].slab)), []).append(move)
        for group in by_slabs.values():
            old, new, lengths = zip(*group, strict=True)
            new[0].slab.copy_from(old[0].slab, [place.slot for place in old], [place.slot for place in new], lengths)

    def compact(self, active: Iterable[Place], share: float) -> None:
        """Move `active` slots together where they fill less than `share`."""
        by_slab: dict[int, list[Place]] = {}
        for place in active:
            by_slab.setdefault(id(place.slab), []).append(place)
        for places in by_slab.values():
            taken = {place.slot for place in places}
            if len(taken) < share * (max(taken) + 1):
                slab = places[0].slab
                holes = [slot for slot in range(len(taken)) if slot not in taken]
                self._swap(slab, holes, sorted(slot for slot in taken if slot >= len(taken)))

    def _swap(self, slab: Slab, first: Sequence[int], second: Sequence[int]) -> None:
        """Exchange slots first[i] and second[i], all distinct, and their holders."""
        here, there = [*first, *second], [*second, *first]
        slab.permute(here, there)
        held = {slot: slab.places.pop(slot) for slot in here if slot in slab.places}
        for old, new in zip(there, here, strict=True):
            if old in held:
                held[old].slot = new
                slab.places[new] = held[old]

    def drop(self) -> None:
        """Free all slabs, or keep a few empty; no place may be used any more."""
        for slab in self.slabs:
            slab.places.clear()  # which name the slab: it would last until garbage is collected
        if self.used > self.keeps:
            self.slabs, self.used = [], 0

    def _with_room(self, capacity: int) -> Slab | None:
        return next((slab for slab in self.slabs if slab.capacity == capacity and not slab.full), None)

    def _grow(self, capacity: int) -> Slab | None:
        one = self.slot_bytes(capacity)
        few = min(SLAB_BYTES, (self.budget - self.used) // 8)  # more, and eight classes leave nothing to the others
        most = max(SLAB_IDS // capacity, few // one)
        wanted = max(1, min(SLAB_SLOTS, most, self.budget // 8 // one, self._max_slots))
        if self._device.type != "cpu" and self._capacity(1) == capacity:
            wanted = self._max_slots  # there are no other classes
        if self.used + wanted * one > self.budget:
            self._give_up_empty()
        slots = min(wanted, (self.budget - self.used) // one)
        if slots < 1:
            return None
        slab = self._layout.slab(capacity, slots)
        self.slabs.append(slab)
        self.used += slots * one
        self.peak = max(self.peak, self.used)
        return slab

    def _give_up_empty(self) -> None:
        self.slabs = [slab for slab in self.slabs if slab.places]
        self.used = sum(slab.slots * self.slot_bytes(slab.capacity) for slab in self.slabs)
