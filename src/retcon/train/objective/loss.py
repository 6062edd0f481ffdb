"""The policy loss: the tokens' terms, averaged. Shapes: B sequences, padded on the right to T tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retcon.config.section import Aggregate
from retcon.train.batch import Batch
from retcon.train.objective.surrogate import Terms, clipped, token_ratio


@dataclass(frozen=True, slots=True)
class Totals:
    """What the means of a minibatch are taken over: tokens in the loss mask, and sequences that have any."""

    tokens: int
    sequences: int

    @classmethod
    def of(cls, mask: Tensor) -> Totals:
        """Those of one batch, mask (B, T)."""
        return cls(int(mask.sum()), int(mask.any(-1).sum()))


@dataclass(frozen=True, slots=True)
class Loss:
    """value: scalar, with gradient. clipped: share of tokens whose gradient the clip cut off. kl: KL(old ‖ new), nats a
    token. entropy_estimate: mean -log π(token), nats, over sampled tokens. The last three without gradient.

    All are sums divided by the whole minibatch's totals, so those of its micro-batches add up to its own. counts: of
    what else the algorithm did, metric to scalar; a step adds them up.
    """

    value: Tensor
    clipped: Tensor
    kl: Tensor
    entropy_estimate: Tensor
    counts: Mapping[str, Tensor] = field(default_factory=dict)


def batch_loss(
    logprobs: Tensor, batch: Batch, totals: Totals, *, clip: tuple[float, float], aggregate: Aggregate,
    dual: float | None = None, masked: Tensor | None = None,
) -> Loss:  # fmt: skip
    """The clipped surrogate of a micro-batch, a ratio for each token. clip: (ε_low, ε_high). dual: see `clipped`."""
    ratio = token_ratio(log_ratios(logprobs, batch))
    terms = clipped(ratio, batch.advantages, low=clip[0], high=clip[1], dual=dual)
    return reduced(terms, logprobs, batch, totals, aggregate=aggregate, masked=masked)


def log_ratios(logprobs: Tensor, batch: Batch) -> Tensor:
    """log π_θ - log π_old, (B, T) nats, 0 outside the mask."""
    return (logprobs - batch.old_logprobs).masked_fill(~batch.mask, 0.0)


def reduced(
    terms: Terms, logprobs: Tensor, batch: Batch, totals: Totals, *, aggregate: Aggregate, masked: Tensor | None = None
) -> Loss:
    """The loss that these terms of a micro-batch add up to, and what is measured beside it.

    logprobs: (B, T) nats, of the trained policy. totals: of the whole minibatch. masked: bool, tokens whose term
    is dropped although they stay in every denominator, so that the others weigh what they weighed before (see
    `negative_spliced`). The batch's weights multiply the terms, likewise without touching the denominators.
    """
    mask = batch.mask
    learnt = mask if masked is None else mask & ~masked
    value = terms.value if batch.weights is None else terms.value * batch.weights
    mean = averaged(value.masked_fill(~learnt, 0.0), mask, totals, aggregate)
    with torch.no_grad():
        difference = log_ratios(logprobs, batch)
        # The k3 estimator: unbiased under the old policy and never negative (Schulman, "Approximating KL", 2020).
        kl = (difference.exp() - 1 - difference).masked_fill(~mask, 0.0).sum()
        entropy_estimate = -logprobs.masked_fill(~mask, 0.0).sum()
    count = max(totals.tokens, 1)
    counts = {} if terms.dual is None else {"dual_clip_tokens": (learnt & terms.dual).sum()}
    return Loss(mean, (learnt & terms.cut).sum() / count, kl / count, entropy_estimate / count, counts)


def averaged(terms: Tensor, mask: Tensor, totals: Totals, aggregate: Aggregate) -> Tensor:
    """A micro-batch's share of the mean over its minibatch. terms: (B, T), 0 outside the mask."""
    if aggregate == "token":
        return terms.sum() / max(totals.tokens, 1)
    if aggregate == "sequence":
        return (terms.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / max(totals.sequences, 1)
    return terms.sum() / (aggregate * max(totals.sequences, 1))


def negative_spliced(advantages: Tensor, spliced: Tensor) -> Tensor:
    """Ours, not the paper's: the spliced tokens, (B, T) bool, of rollouts that did worse than their siblings.

    Nobody sampled them there, so they are less likely than what is sampled, and pushing unlikely ids further down is
    the likely cause where training with repairs collapses. For `batch_loss(masked=...)`.
    """
    return spliced & (advantages < 0)


def imitation(logprobs: Tensor, batch: Batch) -> Tensor:
    """Ours: -Â log π of spliced tokens where Â > 0, 0 elsewhere; (B, T). A cross-entropy weighed by the advantage: what
    nobody sampled there is imitated where it led to a success, without ratio or clip, and otherwise left alone."""
    value = -batch.advantages.clamp(min=0.0) * logprobs
    if batch.weights is not None:
        value = value * batch.weights
    return value.masked_fill(~(batch.spliced & batch.mask), 0.0)
