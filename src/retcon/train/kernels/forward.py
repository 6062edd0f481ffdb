"""Forward passes of training: packed or padded micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from retcon.core.errors import CheckpointError, format_user_error
from retcon.core.types import Sample
from retcon.engine.local.machine import disable_cudnn, keep_pages
from retcon.models.placing import backbone_of, eval_mode, output_head
from retcon.train.batch import Batch, collate, micro_batches
from retcon.train.kernels.attention import use_packed_attention
from retcon.train.kernels.computing import Computing
from retcon.train.kernels.layers import checkpoint_layers, quick_linears, quick_norms
from retcon.train.kernels.logprobs import gather_entropies, gather_logprobs, padded_hidden
from retcon.train.kernels.packing import SharedPrefixes, pack, packed_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
