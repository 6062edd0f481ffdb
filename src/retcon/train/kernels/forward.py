"""Forward passes of training: packed or padded micro-batches, and attention over a packed row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from retcon.core.errors import CheckpointError, format_user_error
from retcon.core.types import Sample
from retcon.engine.local.slabs import attend_by_products, disable_cudnn, keep_pages, prefers_products
from retcon.models.devices import Computing
from retcon.models.placing import backbone_of, eval_mode, output_head
from retcon.train.batch import Batch, collate, micro_batches
from retcon.train.kernels.layers import checkpoint_layers, quick_linears, quick_norms
from retcon.train.kernels.logprobs import gather_entropies, gather_logprobs, padded_hidden
from retcon.train.kernels.packing import Bucket, Packing, Prefix, SharedPrefixes, pack, packed_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "retcon_packed"
HALF = torch.bfloat16, torch.float16
SHORT = 1024
"""Most keys for which bfloat16 attends by products on a CPU: torch's fused kernel takes up to five times as long, but
keeps nothing for the backward, and wins from 2,048 on."""


class _Take(torch.autograd.Function):
    """x[index] with a backward that writes, where torch's adds row by row: `kept` of `index` are distinct (None: all);
    the others, padding, have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, kept: Tensor | None) -> Tensor:
        ctx.save_for_backward(index, kept)
        ctx.shape = x.shape
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        index, kept = ctx.saved_tensors
        if kept is not None:
            index, grad = index[kept], grad.index_select(0, kept)
        return grad.new_zeros(ctx.shape).index_copy_(0, index, grad), None, None


def packed_attention(
    module: nn.Module,  # noqa: ARG001 - transformers passes it
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - likewise
    *,
    packing: Packing,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend over a packed row: query (1, H, N, D); key, value (1, KV, N, D), H a multiple of KV → (1, N, H, D).

    attention_mask: not used. Other keyword arguments are either part of `packing`, or ruled out by
    `forward.why_not_packed`.
    """
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    q, k, v = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))  # (N, heads, D)
    sizes = [bucket.stop - bucket.start for bucket in packing.buckets]
    parts = zip(q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
    out = [
        _bucket_attention(bucket, part, (k, v), scale=scaling, drop=dropout)
        for bucket, part in zip(packing.buckets, parts, strict=True)
    ]
    return (torch.cat(out) if len(out) > 1 else out[0])[None], None


def _bucket_attention(
    bucket: Bucket, own: Sequence[Tensor], every: Sequence[Tensor], *, scale: float | None, drop: float
) -> Tensor:
    """Attend in one bucket. own: q, k, v of its n tokens, (n, heads, D). every: k, v of all tokens → (n, heads, D)."""
    if bucket.index is not None:
        own = [_Take.apply(x, bucket.index, bucket.kept) for x in own]
    q, k, v = (x.unflatten(0, (bucket.rows, bucket.width)) for x in own)
    prefix = bucket.prefix
    if prefix is not None:
        shared = (_prefix_states(x, prefix).unflatten(0, (prefix.count, -1)) for x in every)
        k, v = (torch.cat([x.index_select(0, prefix.rows), y], 1) for x, y in zip(shared, (k, v), strict=True))
    mask = None if prefix is None else prefix.mask
    out = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, scale=scale, drop=drop)
    flat = out.transpose(1, 2).flatten(0, 1)
    return flat if bucket.kept is None else _Take.apply(flat, bucket.kept, None)


def _prefix_states(x: Tensor, prefix: Prefix) -> Tensor:
    """Return the x of all ids in the rows' prefixes. Padding among them has no gradient, as no row sees it."""
    if prefix.distinct:
        taken: Tensor = _Take.apply(x, prefix.index, prefix.kept)
        return taken
    return x.index_select(0, prefix.index)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float | None, drop: float = 0.0) -> Tensor:
    """Return softmax(q kᵀ · scale + mask) v. q: (B, H, T, D); k, v: (B, KV, L, D) → (B, H, T, D).

    mask: (B or 1, 1, T, L), of q's dtype; None: causal, with T = L. scale: None for 1/√D.
    """
    if prefers_products(q) and k.shape[2] <= SHORT and not drop:
        return attend_by_products(q, k, v, mask, q.shape[-1] ** -0.5 if scale is None else scale)
    groups = q.shape[1] // k.shape[1]
    if q.device.type == "cuda" and groups > 1 and (mask is not None or q.dtype not in HALF):
        # With a mask, or in float32, only the slowest of CUDA's kernels knows of groups: it keeps all scores.
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        groups = 1
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, dropout_p=drop, enable_gqa=groups > 1
    )


@contextmanager
def use_packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend by `packed_attention` for a block."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


COPIED = 8
"""Ids of a shared prefix whose keys and values, copied for one more row of attention, take on a GPU about as much as
one computed id keeps for the backward: a tenth to a seventh of it for Qwen3's shapes, as they are copied for each head
of the queries. A CPU's micro-batches are too small for copies to matter."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Part:
    """A micro-batch: its samples, their padded tensors, and log-probs (B, T), 0 where not scored.

    ids: computed ids without padding; padded: those of attention, with padding. entropies: (B, T) nats, 0 where not
    learnt; None unless requested."""

    samples: Sequence[Sample]
    batch: Batch
    logprobs: Tensor
    ids: int
    padded: int
    entropies: Tensor | None = None


@contextmanager
def forwards(
    model: PreTrainedModel, samples: Sequence[Sample], computing: Computing, *, entropies: bool = False
) -> Iterator[Iterator[Part]]:
    """Yield micro-batches of `samples`; use each, with its backward, before the next.

    entropies: whether to compute them, for one more product with the output layer. Raises ValueError if a sample's
    first id is in its loss mask, CheckpointError if the model's code refuses a backward, as Reformer's without dropout.
    """
    packs = _packs(model, samples)
    output_head(model)  # checked before anything is patched
    with ExitStack() as stack:
        if packs:
            stack.enter_context(use_packed_attention(model))
        if computing.checkpointing:
            stack.enter_context(checkpoint_layers(model))
        if model.device.type == "cuda":
            disable_cudnn()
        if model.device.type == "cpu":
            keep_pages()
            stack.enter_context(quick_norms(model))
            if computing.dtype == "float32":
                stack.enter_context(quick_linears(model))
        try:
            yield _parts(model, samples, computing, packs, entropies)
        except (AssertionError, NotImplementedError) as error:
            raise CheckpointError(
                f"{type(model).__name__} has no gradients in this kind of training: "
                f"its own code raised {format_user_error(error)}"
            ) from error


def why_not_packed(model: PreTrainedModel, longest: int) -> str | None:
    """Return why samples of `longest` ids cannot be packed, or None.

    Packing needs attention that is torch's scaled dot product and nothing else, over all of a sample.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    if not model._supports_attention_backend:
        return f"{name} does not take its attention from outside"
    if not model._supports_sdpa or getattr(config, "attn_logit_softcapping", None):
        return f"the attention of {name} is more than a scaled dot product"
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    for kind in dict.fromkeys(kinds):
        if kind == "sliding_attention" and window and longest > window:
            return f"{name} attends over a window of {window} tokens, and a sample has {longest}"
        if kind not in ("full_attention", "sliding_attention"):
            return f"{name} has {kind} layers"
    return None


def batches_of(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> list[list[Sample]]:
    """Return the micro-batches of `samples` that `forwards` computes."""
    if not _packs(model, samples):
        return micro_batches(samples, computing.micro_batch_tokens)
    copied = 0 if model.device.type == "cpu" else COPIED
    return packed_batches(samples, computing.micro_batch_tokens, share=computing.share_prompts, copied=copied)


def _packs(model: PreTrainedModel, samples: Sequence[Sample]) -> bool:
    return why_not_packed(model, max(len(s.ids) for s in samples)) is None and _packs_alike(model)


_ALIKE: WeakKeyDictionary[PreTrainedModel, bool] = WeakKeyDictionary()


@torch.no_grad()
def _packs_alike(model: PreTrainedModel) -> bool:
    """Return whether packed samples get the hidden states of padded ones; some models count positions otherwise.

    Tried once for each model, with two short samples that share a prefix.
    """
    if model not in _ALIKE:
        vocabulary = model.config.get_text_config().vocab_size
        rows = [tuple(n % vocabulary for n in (3, 4, 5, *more)) for more in ((6, 7), (8, 9, 10))]
        samples = [Sample(r, (0, 0, 0, *(1,) * (len(r) - 3)), (None,) * len(r), (0,) * len(r)) for r in rows]
        batch = collate(samples, device=model.device)
        with eval_mode(model):
            hidden, source = padded_hidden(model, batch.ids, batch.mask)
            try:
                with use_packed_attention(model):
                    packing = pack(samples, share=True, dtype=model.dtype, device=model.device)
                    found = backbone_of(model)(
                        input_ids=packing.ids, position_ids=packing.positions, use_cache=False, packing=packing
                    ).last_hidden_state[0]
                apart = (found[packing.source] - hidden[source]).abs().max() / hidden[source].abs().max()
                _ALIKE[model] = bool(apart <= (1e-3 if model.dtype is torch.float32 else 0.1))
            except (TypeError, AttributeError, RuntimeError):  # it calls its attention in another way
                _ALIKE[model] = False
    return _ALIKE[model]


def _parts(
    model: PreTrainedModel, samples: Sequence[Sample], computing: Computing, packs: bool, entropies: bool
) -> Iterator[Part]:
    for part in batches_of(model, samples, computing):
        batch = collate(part, device=model.device)
        with torch.autocast(model.device.type, DTYPES[computing.dtype], enabled=computing.dtype != "float32"):
            forward = _packed if packs else _padded
            found = forward(model, part, batch, computing, entropies)
        yield found


def _padded(
    model: PreTrainedModel, samples: Sequence[Sample], batch: Batch, computing: Computing, entropies: bool
) -> Part:
    hidden, source = padded_hidden(model, batch.ids, batch.scored)
    found = _learnt(model, hidden, source, batch, computing, entropies)
    return Part(samples, batch, found[0], sum(len(s.ids) for s in samples), batch.ids.numel(), found[1])


def _packed(
    model: PreTrainedModel, samples: Sequence[Sample], batch: Batch, computing: Computing, entropies: bool
) -> Part:
    dtype = model.dtype if computing.dtype == "float32" else DTYPES[computing.dtype]
    packing = pack(samples, share=computing.share_prompts, dtype=dtype, device=model.device)
    hidden = backbone_of(model)(
        input_ids=packing.ids, position_ids=packing.positions, use_cache=False, packing=packing
    ).last_hidden_state[0]
    found = _learnt(model, hidden, packing.source, batch, computing, entropies, packing.repeats)
    return Part(samples, batch, found[0], packing.ids.numel(), packing.padded, found[1])


def _learnt(
    model: PreTrainedModel,
    hidden: Tensor,
    source: Tensor,
    batch: Batch,
    computing: Computing,
    entropies: bool,
    repeats: SharedPrefixes | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs, and entropies if requested, (B, T). source: the hidden states before the learnt tokens."""
    chunk, temperature = computing.logits_chunk, computing.temperature
    logprobs = gather_logprobs(
        model, hidden, source, ids=batch.ids, mask=batch.scored, chunk=chunk, repeats=repeats, temperature=temperature
    )
    if not entropies:
        return logprobs, None
    found = gather_entropies(model, hidden, source, mask=batch.scored, chunk=chunk, temperature=temperature)
    return logprobs, found if batch.predicted is None else found.masked_fill(~batch.mask, 0.0)
