"""Forwards of a causal LM over a slotted cache: prefill of ragged stretches, and one decode step of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from retcon.engine.cache import Chunk, FreshChunk, SlotCache, Step

CHUNK_IDS = 4096
"""Padded ids of one prefill forward at most (a longer row goes alone): bounds memory and how long the loop waits."""
CHUNK_SPREAD = 0.6
"""A row joins a chunk if it is at least this long relative to the longest: bounds padding to 40 %."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Ids to feed into a slot at positions start…; logits are wanted of the last `keep` of them."""

    slot: int
    start: int
    ids: Sequence[int]
    keep: int = 1


def chunks(stretches: Sequence[Stretch]) -> Iterator[list[int]]:
    """Indices of `stretches`, grouped by similar length into forwards of at most CHUNK_IDS padded ids."""
    order = sorted(range(len(stretches)), key=lambda i: (stretches[i].start > 0, -len(stretches[i].ids)))
    chunk: list[int] = []
    for index in order:
        if chunk:
            first, this = stretches[chunk[0]], stretches[index]
            full = (len(chunk) + 1) * len(first.ids) > CHUNK_IDS
            if full or len(this.ids) < CHUNK_SPREAD * len(first.ids) or (this.start > 0) != (first.start > 0):
                yield chunk
                chunk = []
        chunk.append(index)
    if chunk:
        yield chunk


def prefill(model: PreTrainedModel, cache: SlotCache, rows: Sequence[Stretch], pad_id: int) -> Tensor:
    """Feed one chunk. Returns the wanted logits, (sum of keep, V), row after row."""
    device = model.device
    counts = torch.tensor([len(r.ids) for r in rows])
    starts = torch.tensor([r.start for r in rows])
    slots = torch.tensor([r.slot for r in rows])
    width = int(counts.max())
    offset = torch.arange(width)
    valid = offset < counts[:, None]
    flat = torch.tensor([i for r in rows for i in r.ids])
    ids = torch.full((len(rows), width), pad_id).masked_scatter_(valid, flat)
    keep = valid & (offset >= counts[:, None] - torch.tensor([r.keep for r in rows])[:, None])
    # Padding repeats its row's last position, so that models with learnt positions are not asked for one too many.
    positions = starts[:, None] + torch.minimum(offset, counts[:, None] - 1)
    length = int((starts + counts).max())
    kind = Chunk if int(starts.max()) else FreshChunk
    cache.access = kind(
        slots=slots.to(device),
        valid=valid.to(device),
        token_slots=slots[:, None].expand_as(valid)[valid].to(device),
        positions=positions[valid].to(device),
        length=length,
    )
    blocked = torch.arange(length) > positions[:, :, None]
    logits: Tensor = model(
        input_ids=ids.to(device),
        position_ids=positions.to(device),
        attention_mask=additive(blocked, model.dtype)[:, None].to(device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=keep.to(device),
    ).logits
    return logits


def decode(model: PreTrainedModel, cache: SlotCache, ids: Tensor, access: Step, mask: Tensor) -> Tensor:
    """Feed one id to each of the first slots: ids (B,), mask (B, 1, 1, length) additive → logits (B, V)."""
    cache.access = access
    logits: Tensor = model(
        input_ids=ids[:, None],
        position_ids=access.positions[:, None],
        attention_mask=mask,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    return logits[:, -1]


def additive(blocked: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to attention scores, which eager attention needs and which spares sdpa a conversion per layer."""
    return torch.zeros(blocked.shape, dtype=dtype).masked_fill_(blocked, torch.finfo(dtype).min)
