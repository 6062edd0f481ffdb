"""Attention over slabs of keys and values, for transformers' attention interface.

A forward of the engine is packed: all tokens of all requests in one row, (1, N), so that linear layers see one batch
whatever each request does. Only the `ForwardPlan` knows which tokens belong together. It travels with the forward as
the keyword `retcon_plan`, stores the new keys and values and attends job by job.

The G query heads that share a head of keys are folded into the query length: (B, KV, G, D) against (B, KV, L, D) needs
no copy of the keys for every query head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.functional import scaled_dot_product_attention as sdpa

from retcon.core.errors import EngineError, reraise_as
from retcon.engine.local.slabs import Slab, attend_by_products, prefers_products

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "retcon"
UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Options of some models' attention that are not supported here."""


class AttentionJob(Protocol):
    """Part of a packed attention: queries (N, H, D), stored keys (N, KV, D) and values (N, KV, E)."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Return the attention of M of the tokens, (M, H, E)."""
        ...

    @property
    def target(self) -> slice | Tensor:
        """The M tokens, by index."""
        ...


@dataclass(frozen=True, slots=True)
class KVStore:
    """Slots and positions of new keys and values, (end - start,) each.

    index: by number of heads, the rows in a slab's (slots · KV · capacity, size), once they are known.
    """

    slab: Slab
    start: int
    end: int
    slots: Tensor
    positions: Tensor
    index: dict[int, Tensor] = field(default_factory=dict)

    def __call__(self, layer: int, k: Tensor, v: Tensor) -> None:
        heads = k.shape[1]
        if heads not in self.index:
            head = torch.arange(heads, device=k.device)
            row = (self.slots[:, None] * heads + head) * self.slab.capacity + self.positions[:, None]
            self.index[heads] = row.flatten()
        for new, slab in ((k, self.slab.keys[layer]), (v, self.slab.values[layer])):
            slab.view(-1, slab.shape[-1]).index_copy_(0, self.index[heads], new[self.start : self.end].flatten(0, 1))


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """Attention of ids start…end in the first `count` slots of a slab.

    The slots are read as a view, without a copy. width: ids of a slot at most. where: (end - start,), slot · width +
    number of each id; None where each slot has one. mask: (count, width, capacity), additive, where a slot has several
    ids, the later hidden from the earlier ones; else the slab's own. queries: queries for each head of keys, padded so
    that no result depends on their number. cold: whether keys and values exceed the processor's cache. length:
    positions of the slots that are attended to, None for all.
    """

    slab: Slab
    start: int
    end: int
    count: int
    width: int
    where: Tensor | None
    mask: Tensor | None = None
    queries: int = 1
    cold: bool = False
    length: int | None = None

    @property
    def target(self) -> slice:
        return slice(self.start, self.end)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        heads, size = k.shape[1:]
        queries = q[self.start : self.end] * scale
        if self.where is not None:
            queries = queries.new_zeros(self.count * self.width, *q.shape[1:]).index_copy_(0, self.where, queries)
        keys, values = self.slab.keys[layer][: self.count], self.slab.values[layer][: self.count]
        if self.length is not None:
            keys, values = keys[:, :, : self.length], values[:, :, : self.length]
        queries = queries.view(self.count, self.width, heads, -1, size).transpose(1, 2)
        queries = queries.reshape(self.count * heads, -1, size)
        asked = queries.shape[1]
        if asked < self.queries:
            queries = pad(queries, (0, 0, 0, self.queries - asked))
        # Two batched products over whole slots, which are contiguous: several times quicker on CPUs than attention
        # kernels, which are made for many queries.
        self._warm(keys)
        scores = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2))
        if self.mask is None:
            scores.view(self.count, -1, keys.shape[2]).add_(self.slab.mask[: self.count, ..., : self.length])
        else:
            shown = scores[:, :asked].view(self.count, heads, self.width, -1, keys.shape[2])
            shown.add_(self.mask[:, None, :, None])
        self._warm(values)
        attended = torch.bmm(scores.softmax(-1), values.flatten(0, 1))[:, :asked]
        attended = attended.view(self.count, heads, self.width, -1, v.shape[2]).transpose(1, 2)
        attended = attended.reshape(self.count * self.width, q.shape[1], -1)
        return attended if self.where is None else attended.index_select(0, self.where)

    def _warm(self, kept: Tensor) -> None:
        """Read keys or values in order, as fast as memory allows: products in bfloat16 wait for each piece that is not
        in the cache. Together that takes a quarter less."""
        if self.cold:
            kept.view(torch.int64).sum()


@dataclass(frozen=True, slots=True)
class FreshJob:
    """Attention of new texts: `rows` chunks of `width` tokens from position 0, one after another from token `start`."""

    start: int
    rows: int
    width: int

    @property
    def target(self) -> slice:
        return slice(self.start, self.start + self.rows * self.width)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        queries, keys, values = (
            x[self.target].view(self.rows, self.width, *x.shape[1:]).transpose(1, 2) for x in (q, k, v)
        )
        if prefers_products(q):
            attended = attend_by_products(queries, keys, values, None, scale)
        else:
            keys, values = (_repeat_heads(queries, x) for x in (keys, values))
            shared = queries.shape[1] != keys.shape[1]
            attended = sdpa(queries, keys, values, is_causal=True, scale=scale, enable_gqa=shared)
        return attended.transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class PastJob:
    """Attention of chunks after stored tokens, in slots (R,) of a slab.

    index: (R, T) of tokens in the packed row, padded on the right with any. target: (M,) the tokens without padding,
    where: (M,) their places in R · T. mask: (R, 1, T, L) additive. folded: whether to fold heads, which spares the
    copies of keys but repeats the mask.
    """

    slab: Slab
    slots: Tensor
    mask: Tensor
    index: Tensor
    target: Tensor
    where: Tensor
    folded: bool

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        length = self.mask.shape[-1]
        keys = self.slab.keys[layer][:, :, :length].index_select(0, self.slots)
        values = self.slab.values[layer][:, :, :length].index_select(0, self.slots)
        queries = q.index_select(0, self.index.flatten()).unflatten(0, self.index.shape).transpose(1, 2)
        rows, heads, width, size = queries.shape
        groups = heads // keys.shape[1]
        if prefers_products(q):
            attended = attend_by_products(queries, keys, values, self.mask, scale)
        elif self.folded and groups > 1:
            queries = queries.reshape(rows, keys.shape[1], groups * width, size)
            mask = self.mask.repeat(1, 1, groups, 1)
            attended = sdpa(queries, keys, values, attn_mask=mask, scale=scale).reshape(rows, heads, width, -1)
        else:
            keys, values = (_repeat_heads(queries, x) for x in (keys, values))
            shared = heads != keys.shape[1]
            attended = sdpa(queries, keys, values, attn_mask=self.mask, scale=scale, enable_gqa=shared)
        return attended.transpose(1, 2).flatten(0, 1).index_select(0, self.where)


def _repeat_heads(queries: Tensor, shared: Tensor) -> Tensor:
    """On a GPU, repeat keys or values (B, KV, L, D) for each of the queries' heads, (B, H, L, D).

    With a mask, or in float32, only its slowest kernel knows of groups, and keeps all scores; else the copy is small
    beside a chunk's products."""
    groups = queries.shape[1] // shared.shape[1]
    return shared.repeat_interleave(groups, 1) if shared.device.type == "cuda" and groups > 1 else shared


Form = tuple[tuple[int, int, int, int], ...]
"""Of each decode job: its slab's number, ids, slots, and positions that are attended to."""


@dataclass(slots=True)
class ForwardPlan:
    """One packed forward of N tokens. ids, positions: (N,). keep: (K,) tokens whose logits are wanted.

    whole: whether one job has all tokens in order, except padding at the end. form and block: of a plan that can be
    replayed (see `fixed_plan`).
    """

    ids: Tensor
    positions: Tensor
    keep: Tensor
    stores: Sequence[KVStore] = ()
    jobs: Sequence[AttentionJob] = ()
    whole: bool = False
    form: Form | None = None
    block: Tensor | None = None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        for store in self.stores:
            store(layer, k, v)
        if self.whole:
            attended = self.jobs[0](layer, q, k, v, scale)
            missing = len(q) - len(attended)
            return pad(attended, (0, 0, 0, 0, 0, missing)) if missing else attended
        out = q.new_zeros(*q.shape[:2], v.shape[-1])  # zeros, as ids that only pad the batch belong to no job
        for job in self.jobs:
            attended = job(layer, q, k, v, scale)
            if isinstance(job.target, Tensor):
                out.index_copy_(0, job.target, attended)
            else:
                out[job.target] = attended
        return out


@dataclass(slots=True)
class ShapeRecorder(ForwardPlan):
    """A plan that records layers' (heads of keys, key size, value size).

    products: the shapes of its attention: (heads of keys, heads of queries to one of these, key size, value size).
    """

    layers: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    products: set[tuple[int, int, int, int]] = field(default_factory=set)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        self.layers[layer] = (k.shape[1], k.shape[2], v.shape[2])
        self.products.add((k.shape[1], q.shape[1] // k.shape[1], k.shape[2], v.shape[2]))
        return q.new_zeros(*q.shape[:2], v.shape[-1])


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 (the plan has its own)
    *,
    retcon_plan: ForwardPlan | None = None,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """Attend for transformers: query (1, H, N, D), key (1, KV, N, D), value (1, KV, N, E) → (1, N, H, E)."""
    if retcon_plan is None:
        raise EngineError(f"{type(module).__name__} does not pass options to its attention function")
    asked = [name for name in UNKNOWN if options.get(name) is not None]
    if asked:
        raise EngineError(f"{type(module).__name__} needs {', '.join(asked)}, which packed forwards do not support")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (x.transpose(1, 2)[0] for x in (query, key, value))
    return retcon_plan.attend(module.layer_idx, q, k, v, scale)[None], None  # type: ignore[arg-type]


def forward(model: PreTrainedModel, plan: ForwardPlan) -> Tensor:
    """Return a plan's logits (K, V); store its keys and values. Leaves the model as it was."""
    with _retcon_attention(model):
        logits: Tensor = model(
            input_ids=plan.ids[None],
            position_ids=plan.positions[None],
            use_cache=False,
            logits_to_keep=plan.keep,
            retcon_plan=plan,
        ).logits
    return logits[0]


@contextmanager
def _retcon_attention(model: PreTrainedModel) -> Iterator[None]:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def record_shapes(model: PreTrainedModel) -> ShapeRecorder:
    """Record the model's shapes by a forward of one id. Raises EngineError where they cannot be known."""
    nothing = torch.zeros(1, dtype=torch.long, device=model.device)
    plan = ShapeRecorder(nothing, nothing, nothing)
    name = type(model).__name__
    with torch.inference_mode(), reraise_as(EngineError, f"{name} over stored keys and values"):
        forward(model, plan)
    if not plan.layers:
        raise EngineError(f"{name} does not run its attention through transformers' attention interface")
    return plan
