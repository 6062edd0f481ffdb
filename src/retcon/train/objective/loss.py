"""The policy loss. Shapes: B sequences, padded on the right to T ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from retcon.train.batch import Batch

Aggregate = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class Totals:
    """What the means of a minibatch are taken over: ids under the loss mask, and sequences that have any."""

    ids: int
    sequences: int

    @classmethod
    def of(cls, mask: Tensor) -> Totals:
        """Those of one batch, mask (B, T)."""
        return cls(int(mask.sum()), int(mask.any(-1).sum()))


@dataclass(frozen=True, slots=True)
class Loss:
    """value: scalar, with gradient. clipped: share of ids whose gradient the clip cut off. kl: KL(old ‖ new), nats a
    token. entropy_estimate: mean -log π(token), nats, over sampled tokens. The last three without gradient.

    All are sums divided by the whole minibatch's totals, so those of its micro-batches add up to its own.
    """

    value: Tensor
    clipped: Tensor
    kl: Tensor
    entropy_estimate: Tensor


def batch_loss(
    logprobs: Tensor, batch: Batch, totals: Totals, *, clip: tuple[float, float], aggregate: Aggregate,
    muted: Tensor | None = None,
) -> Loss:  # fmt: skip
    """`policy_loss` of a micro-batch. clip: (ε_low, ε_high)."""
    return policy_loss(
        logprobs,
        batch.old_logprobs,
        batch.advantages,
        batch.mask,
        clip_low=clip[0],
        clip_high=clip[1],
        aggregate=aggregate,
        totals=totals,
        muted=muted,
        weights=batch.weights,
    )


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    aggregate: Aggregate = "token",
    totals: Totals | None = None,
    muted: Tensor | None = None,
    weights: Tensor | None = None,
) -> Loss:
    """The clipped surrogate: -min(ρ Â, clip(ρ, 1 - ε_low, 1 + ε_high) Â), ρ = π_θ / π_old = exp(logprobs - old).

    All tensors (B, T); logprobs, old_logprobs: nats, advantages Â; mask: bool, what is learnt from.
    aggregate: `token`, the mean over all ids of the minibatch (DAPO, arXiv 2503.14476, equation 8, with ε_high > ε_low
    its clip-higher); `sequence`, the mean over each sequence's ids, then over sequences (GRPO, arXiv 2402.03300,
    equation 3, without its KL term, and ε_low = ε_high). totals: of the whole minibatch where this is a part of it,
    None for this batch's own. muted: bool, ids whose term is dropped although they stay in every denominator, so that
    the other ids weigh what they weighed before (see `negative_spliced`). weights: (B, T) float, what each id's term is
    multiplied by after the clip, likewise without touching the denominators; None for 1.
    """
    totals = totals or Totals.of(mask)
    difference = (logprobs - old_logprobs).masked_fill(~mask, 0.0)
    ratio = difference.exp()
    clipped_ratio = ratio.clamp(1 - clip_low, 1 + clip_high)
    terms = -torch.minimum(ratio * advantages, clipped_ratio * advantages)
    if weights is not None:
        terms = terms * weights
    learnt = mask if muted is None else mask & ~muted
    terms = terms.masked_fill(~learnt, 0.0)
    if aggregate == "token":
        value = terms.sum() / max(totals.ids, 1)
    else:
        value = (terms.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / max(totals.sequences, 1)
    with torch.no_grad():
        # The minimum takes the clipped branch, which has no gradient, only on the side where Â pushes further out.
        cut = learnt & (((advantages > 0) & (ratio > 1 + clip_high)) | ((advantages < 0) & (ratio < 1 - clip_low)))
        # The k3 estimator: unbiased under the old policy and never negative (Schulman, "Approximating KL", 2020).
        kl = (ratio - 1 - difference).masked_fill(~mask, 0.0).sum()
        entropy_estimate = -logprobs.masked_fill(~mask, 0.0).sum()
    count = max(totals.ids, 1)
    return Loss(value, cut.sum() / count, kl / count, entropy_estimate / count)


def negative_spliced(advantages: Tensor, spliced: Tensor) -> Tensor:
    """Ours, not the paper's: the spliced ids, (B, T) bool, of rollouts that did worse than their siblings.

    Nobody sampled them there, so they are less likely than what is sampled, and pushing unlikely ids further down is
    the likely cause where training with repairs collapses. For `policy_loss(muted=...)`.
    """
    return spliced & (advantages < 0)
