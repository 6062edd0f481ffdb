"""The policy loss: the tokens' terms, averaged. Shapes: B sequences, padded on the right to T tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retcon.config.section import Aggregate
from retcon.train.batch import Batch

# What a token's share of the policy loss is: the ratio π_θ / π_old, and what is made of it and the advantage.
#
# Shapes: B sequences, padded on the right to T tokens. Pure.


@dataclass(frozen=True, slots=True)
class Terms:
    """value: (B, T), what is to be made smaller, with gradient. cut: (B, T) bool, where the gradient was cut off, or
    the ratio that weighs it was. dual: (B, T) bool, where the dual clip did so; None without one."""

    value: Tensor
    cut: Tensor
    dual: Tensor | None = None


def token_ratio(difference: Tensor) -> Tensor:
    """ρ_t = π_θ / π_old of each token. difference: (B, T) nats, log π_θ - log π_old, 0 outside the mask."""
    return difference.exp()


def sequence_ratio(difference: Tensor, mask: Tensor) -> Tensor:
    """s = (π_θ(y) / π_old(y))^(1 / |y|), (B, 1): the geometric mean of a sequence's ratios (GSPO, arXiv 2507.18071,
    equation 7). Its gradient is that of the mean log-prob, times s."""
    return (difference.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


def clipped(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None) -> Terms:
    """-min(ρ Â, clip(ρ, 1 - ε_low, 1 + ε_high) Â): PPO's clip (arXiv 1707.06347, equation 7).

    ratio: (B, T), or (B, 1) where a sequence has one. dual: c > 1 of the dual clip (arXiv 1912.09729, equation 5):
    where Â < 0 a term is at most -c Â, so that a token that has become c times as likely and was wrong no longer
    pushes; None for PPO's clip alone.
    """
    bounded = ratio.clamp(1 - low, 1 + high)
    value = -torch.minimum(ratio * advantages, bounded * advantages)
    # The minimum takes the clipped branch, which has no gradient, only on the side where Â pushes further out.
    cut = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    if dual is None:
        return Terms(value, cut)
    far = (advantages < 0) & (ratio > dual)
    return Terms(torch.where(far, -dual * advantages, value), cut | far, far)


def clipped_with_gradient(
    difference: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> Terms:
    """-min(ρ Â, clip(ρ, 1 - ε_low, (1 + ε_high) ρ / sg(ρ)) Â): PPO's clip in value, but with the upper bound's
    gradient, (1 + ε_high) Â ∇log π_θ, where PPO's has none (AEPO, arXiv 2510.14545). sg: without gradient.

    difference: (B, T) nats, log π_θ - log π_old, 0 outside the mask. dual: see `clipped`.
    """
    plain = clipped(token_ratio(difference), advantages, low=low, high=high, dual=dual)
    above = (advantages > 0) & (difference.detach().exp() > 1 + high)
    kept = -(1 + high) * (difference - difference.detach()).exp() * advantages
    return Terms(torch.where(above, kept, plain.value), plain.cut & ~above, plain.dual)


def truncated(ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, low: float, high: float) -> Terms:
    """-sg(clip(ρ, 1 - ε_low, 1 + ε_high)) Â log π_θ: CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5). The
    clipped ratio is a weight without gradient, so that every token keeps one. cut: where the weight was clipped."""
    weight = ratio.detach().clamp(1 - low, 1 + high)
    return Terms(-weight * advantages * logprobs, (ratio.detach() != weight).expand_as(logprobs))


@dataclass(frozen=True, slots=True)
class Totals:
    """What the means of a minibatch are taken over: tokens in the loss mask, and sequences that have any, each as many
    as its scale says (`Sample.scale`)."""

    tokens: float
    sequences: float

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
    mean = averaged(value.masked_fill(~learnt, 0.0), batch, totals, aggregate)
    with torch.no_grad():
        difference = log_ratios(logprobs, batch)
        # The k3 estimator: unbiased under the old policy and never negative (Schulman, "Approximating KL", 2020).
        kl = averaged((difference.exp() - 1 - difference).masked_fill(~mask, 0.0), batch, totals, "token")
        entropy_estimate = averaged(-logprobs.masked_fill(~mask, 0.0), batch, totals, "token")
        cut = averaged(learnt & terms.cut, batch, totals, "token")
    counts = {} if terms.dual is None else {"dual_clip_tokens": (learnt & terms.dual).sum()}
    return Loss(mean, cut, kl, entropy_estimate, counts)


def averaged(terms: Tensor, batch: Batch, totals: Totals, aggregate: Aggregate) -> Tensor:
    """A micro-batch's share of the mean over its minibatch, samples weighed by their scales. terms: (B, T), 0 outside
    the mask."""
    if batch.scales is not None:
        terms = terms * batch.scales
    if aggregate == "token":
        return terms.sum() / (totals.tokens or 1)
    if aggregate == "sequence":
        return (terms.sum(-1) / batch.mask.sum(-1).clamp(min=1)).sum() / (totals.sequences or 1)
    return terms.sum() / (aggregate * (totals.sequences or 1))


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
