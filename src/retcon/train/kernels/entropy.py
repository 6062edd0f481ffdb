"""Entropies of the distributions that tokens are drawn from, exactly, without all logits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from retcon.models.logits import before_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def gather_entropies(
    model: PreTrainedModel, hidden: Tensor, source: Tensor, *, mask: Tensor, chunk: int, temperature: float = 1.0
) -> Tensor:
    """H(π(· | prefix)) before each token in the loss mask, in its place, (B, T) float32 nats, 0 elsewhere; with
    gradient. hidden: (N, d). source: (L,), the hidden states that precede the L tokens in the loss mask, row by row.
    chunk: logits (tokens × vocabulary) at once; beyond it they are computed once more in the backward. temperature:
    what logits are divided by."""
    entropies = partial(_entropies, model.get_output_embeddings(), temperature)
    states = before_head(model, hidden.index_select(0, source))
    tokens = max(1, chunk // int(model.config.get_text_config().vocab_size))
    if len(states) <= tokens:
        found = entropies(states)
    else:
        parts = [checkpoint(entropies, part, use_reentrant=False) for part in states.split(tokens)]
        found = torch.cat(parts)
    where = mask.reshape(-1).nonzero().squeeze(-1)
    return found.new_zeros(mask.numel()).index_copy(0, where, found).view(mask.shape)


def _entropies(head: Any, temperature: float, states: Tensor) -> Tensor:
    """-Σ p log p of the output layer's logits, (n, d) to (n,)."""
    logits = head(states)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = (wide if temperature == 1.0 else wide / temperature).log_softmax(-1)
    entropies: Tensor = -(logprobs.exp() * logprobs).sum(-1)
    return entropies
