"""Log-probs of given ids, by slices of the vocabulary.

The logits of N ids over V words exist `chunk` at a time, in the forward, which keeps the running log-sum-exp alone, and
in the backward, which computes them again. Slices of the vocabulary, unlike slices of the ids, write each part of the
gradient of the output layer's weights once, as in Cut Cross-Entropy (arXiv 2411.09009); as there, the softmax is
recomputed from the log-sum-exp. If one slice holds all, its logits are kept instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from retcon.models.devices import DEFAULT_COMPUTING
from retcon.models.placing import backbone_of, output_head
from retcon.train.kernels.layers import product_for
from retcon.train.kernels.packing import SharedPrefixes

if TYPE_CHECKING:
    from transformers import PreTrainedModel


SLICE = 2**22
"""Most logits of one of several slices on a CPU: larger ones need new pages each time, whose faults cost as much as the
computation in them."""


def token_logprobs(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, chunk: int = DEFAULT_COMPUTING.logits_chunk
) -> Tensor:
    """Return masked ids' log-probs, (B, T) float32 nats.

    log π(ids[:, t] | ids[:, :t]), 0 outside the mask; mask[:, 0] must be False. Padding must be on the right, where
    causal attention never sees it. Logits, most of a small model's work, are computed for the masked positions alone,
    `chunk` of them at once.
    """
    hidden, source = padded_hidden(model, ids, mask)
    return gather_logprobs(model, hidden, source, ids=ids, mask=mask, chunk=chunk)


def padded_hidden(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden states, (B · T, d), and masked tokens' predecessors, (L,)."""
    hidden: Tensor = backbone_of(model)(input_ids=ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1), mask.reshape(-1).nonzero().squeeze(-1) - 1


def gather_logprobs(
    model: PreTrainedModel, hidden: Tensor, source: Tensor, *, ids: Tensor, mask: Tensor, chunk: int,
    repeats: SharedPrefixes | None = None, temperature: float = 1.0,
) -> Tensor:  # fmt: skip
    """Return log π of the masked tokens, (B, T), 0 elsewhere. hidden: (N, d). source: (L,), the hidden states that
    precede the L tokens in the loss mask, row by row. repeats: tokens to be computed only once. temperature: divisor of
    the logits."""
    # index_select, unlike a boolean index, has a backward that is deterministic at no cost.
    where = mask.reshape(-1).nonzero().squeeze(-1)
    targets = ids.reshape(-1).index_select(0, where)
    if repeats is not None:
        source, targets = source.index_select(0, repeats.first), targets.index_select(0, repeats.first)
    head, scale = output_head(model)
    states = _scaled(hidden.index_select(0, source), scale)
    found = learnt_logprobs(states, head, targets, chunk, temperature)
    if repeats is not None:
        found = found.index_select(0, repeats.of)
    return found.new_zeros(mask.numel()).index_copy(0, where, found).view(mask.shape)


def learnt_logprobs(hidden: Tensor, head: nn.Module, targets: Tensor, chunk: int, temperature: float = 1.0) -> Tensor:
    """Return log π(targets), (N,) float32 nats (float64 for such states). hidden: (N, d), before each target. head: the
    output layer. chunk: logits (ids × vocabulary) at once. temperature: divisor of the logits.

    The matrix products are computed in autocast's dtype if it is on, the rest in float32. A head that is not a plain
    linear layer (an adapter on it) is called on slices of the tokens instead.
    """
    if type(head) is not nn.Linear:
        return _by_ids(hidden, head, targets, chunk, temperature)
    kind = hidden.device.type
    autocast = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if autocast else hidden.dtype
    bias = None if head.bias is None else (head.bias / temperature).to(dtype)
    if temperature != 1.0:
        hidden = _wide(hidden, temperature)
    with torch.autocast(kind, enabled=False):
        found: Tensor = _Logprobs.apply(hidden.to(dtype), head.weight.to(dtype), bias, targets, chunk)
    return found


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int) -> Tensor:
        words = max(1, chunk // max(1, len(hidden)))
        if words < len(weight) and hidden.device.type == "cpu":
            words = max(1, min(chunk, SLICE) // max(1, len(hidden)))
        product = product_for(weight)
        ctx.words, ctx.product = words, product
        if words >= len(weight):
            logprobs = _wide(product(hidden, weight, bias)).log_softmax(-1)
            ctx.save_for_backward(hidden, weight, bias, targets, None, logprobs)
            return logprobs.gather(1, targets[:, None])[:, 0]
        lse = torch.full_like(targets, -torch.inf, dtype=_width(hidden.dtype))
        picked = torch.zeros_like(lse)
        for part, first in _slices(weight, bias, words):
            logits = _wide(product(hidden, *part))
            lse = torch.logaddexp(lse, logits.logsumexp(-1))
            inside = (targets >= first) & (targets < first + len(part[0]))
            at = logits.gather(1, (targets - first).clamp(0, len(part[0]) - 1)[:, None])[:, 0]
            picked = torch.where(inside, at, picked)
        ctx.save_for_backward(hidden, weight, bias, targets, lse, None)
        return picked - lse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, lse, logprobs = ctx.saved_tensors
        product = ctx.product
        of_hidden = hidden.new_zeros(hidden.shape, dtype=grad.dtype) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        for part, first in _slices(weight, bias, ctx.words):
            known = _wide(product(hidden, *part)).sub_(lse[:, None]) if logprobs is None else logprobs
            # d log π(target) / d logit = [word is target] - softmax
            change = known.exp().mul_(-grad[:, None])
            inside = (targets >= first) & (targets < first + len(part[0]))
            at = (targets - first).clamp(0, len(part[0]) - 1)[:, None]
            change.scatter_add_(1, at, torch.where(inside, grad, 0.0)[:, None])
            rows = slice(first, first + len(part[0]))
            if of_bias is not None:
                of_bias[rows] = change.sum(0)
            change = change.to(hidden.dtype)
            if of_weight is not None:
                of_weight[rows] = product(change.t(), hidden.t())
            if of_hidden is not None:
                of_hidden += product(change, part[0].t())
        return None if of_hidden is None else of_hidden.to(hidden.dtype), of_weight, of_bias, None, None


def _slices(weight: Tensor, bias: Tensor | None, words: int) -> Iterator[tuple[tuple[Tensor, Tensor | None], int]]:
    for first in range(0, len(weight), words):
        yield (weight[first : first + words], None if bias is None else bias[first : first + words]), first


def _width(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _wide(logits: Tensor, temperature: float = 1.0) -> Tensor:
    wide = logits.to(_width(logits.dtype))
    return wide if temperature == 1.0 else wide / temperature


def _by_ids(hidden: Tensor, head: nn.Module, targets: Tensor, chunk: int, temperature: float) -> Tensor:
    def part(states: Tensor, wanted: Tensor) -> Tensor:
        return -functional.cross_entropy(_wide(head(states), temperature), wanted, reduction="none")

    with torch.no_grad():
        words = head(hidden[:1]).shape[-1]
    ids = max(1, chunk // words)
    if len(hidden) <= ids:
        return part(hidden, targets)
    parts = zip(hidden.split(ids), targets.split(ids), strict=True)
    return torch.cat([checkpoint(part, *p, use_reentrant=False) for p in parts])


def gather_entropies(
    model: PreTrainedModel, hidden: Tensor, source: Tensor, *, mask: Tensor, chunk: int, temperature: float = 1.0
) -> Tensor:
    """Return the entropies H(π(· | prefix)) before masked tokens, with gradient: (B, T) float32 nats, 0 elsewhere.
    hidden: (N, d). source: (L,), the hidden states that precede the L tokens in the loss mask, row by row. chunk:
    logits (tokens × vocabulary) at once; beyond it they are computed once more in the backward. temperature: divisor of
    the logits."""
    head, scale = output_head(model)
    entropies = partial(_entropies, head, temperature)
    states = _scaled(hidden.index_select(0, source), scale)
    tokens = max(1, chunk // int(model.config.get_text_config().vocab_size))
    if len(states) <= tokens:
        found = entropies(states)
    else:
        parts = [checkpoint(entropies, part, use_reentrant=False) for part in states.split(tokens)]
        found = torch.cat(parts)
    where = mask.reshape(-1).nonzero().squeeze(-1)
    return found.new_zeros(mask.numel()).index_copy(0, where, found).view(mask.shape)


def _scaled(hidden: Tensor, factor: float) -> Tensor:
    return hidden if factor == 1.0 else hidden * factor


def _entropies(head: Any, temperature: float, states: Tensor) -> Tensor:
    """Return -Σ p log p of the output layer's logits, (n, d) to (n,)."""
    logits = head(states)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = (wide if temperature == 1.0 else wide / temperature).log_softmax(-1)
    entropies: Tensor = -(logprobs.exp() * logprobs).sum(-1)
    return entropies
