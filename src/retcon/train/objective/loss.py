"""Policy losses and their averages. Shapes: B sequences, padded on the right to T tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from retcon.config.section import Aggregate
from retcon.train.batch import Batch


@dataclass(frozen=True, slots=True)
class Terms:
    """The tokens' terms of a loss. value: (B, T), minimised, with gradient. cut: (B, T) bool, where the gradient, or
    the ratio that weighs it, was cut off. dual: (B, T) bool, where the dual clip did so; None without one."""

    value: Tensor
    cut: Tensor
    dual: Tensor | None = None


def token_ratio(difference: Tensor) -> Tensor:
    """Return ρ_t = π_θ / π_old. difference: (B, T) nats, log π_θ - log π_old, 0 outside the mask."""
    return difference.exp()


def sequence_ratio(difference: Tensor, mask: Tensor) -> Tensor:
    """Return s = (π_θ(y) / π_old(y))^(1 / |y|), (B, 1): the geometric mean of a sequence's ratios (GSPO, arXiv
    2507.18071, equation 7). Its gradient is that of the mean log-prob, times s."""
    return (difference.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)).exp()


def clip_terms(ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None) -> Terms:
    """Return PPO's clipped terms (arXiv 1707.06347, equation 7).

    -min(ρ Â, clip(ρ, 1 - ε_low, 1 + ε_high) Â). ratio: (B, T), or (B, 1) for sequences. dual: c > 1 of the dual clip
    (arXiv 1912.09729, equation 5): if Â < 0 a term is at most -c Â, so that a wrong token that has become c times as
    likely has no gradient; None for PPO's clip alone.
    """
    bounded = ratio.clamp(1 - low, 1 + high)
    value = -torch.minimum(ratio * advantages, bounded * advantages)
    # The minimum takes the clipped branch, which has no gradient, only on the side where Â pushes further out.
    cut = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    if dual is None:
        return Terms(value, cut)
    far = (advantages < 0) & (ratio > dual)
    return Terms(torch.where(far, -dual * advantages, value), cut | far, far)


def clip_with_gradient(
    difference: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None = None
) -> Terms:
    """Return PPO's terms with a gradient above the clip (arXiv 2510.14545).

    AEPO: -min(ρ Â, clip(ρ, 1 - ε_low, (1 + ε_high) ρ / sg(ρ)) Â): PPO's value, with the upper bound's gradient, (1 +
    ε_high) Â ∇log π_θ. sg: without gradient. difference: (B, T) nats, log π_θ - log π_old, 0 outside the mask. dual: as
    in `clip_terms`.
    """
    plain = clip_terms(token_ratio(difference), advantages, low=low, high=high, dual=dual)
    above = (advantages > 0) & (difference.detach().exp() > 1 + high)
    kept = -(1 + high) * (difference - difference.detach()).exp() * advantages
    return Terms(torch.where(above, kept, plain.value), plain.cut & ~above, plain.dual)


def cispo_terms(ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, low: float, high: float) -> Terms:
    """Return CISPO's terms: -sg(clip(ρ, 1 - ε_low, 1 + ε_high)) Â log π_θ (MiniMax-M1, arXiv 2506.13585, equations 4,
    5). The clipped ratio is a weight without gradient, so that every token keeps one. cut: where the weight was
    clipped."""
    weight = ratio.detach().clamp(1 - low, 1 + high)
    return Terms(-weight * advantages * logprobs, (ratio.detach() != weight).expand_as(logprobs))


@dataclass(frozen=True, slots=True)
class Totals:
    """Denominators of a minibatch's means: tokens in the loss mask, and sequences that have any, each times its
    `Sample.scale`."""

    tokens: float
    sequences: float

    @classmethod
    def of(cls, mask: Tensor) -> Totals:
        """Count the totals of one batch, mask (B, T)."""
        return cls(int(mask.sum()), int(mask.any(-1).sum()))


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss and its metrics. value: scalar, with gradient. clipped: share of tokens whose gradient the clip cut off.
    kl: KL(old ‖ new), nats a token. entropy_estimate: mean -log π(token), nats, over sampled tokens.

    All are sums divided by the whole minibatch's totals, so those of its micro-batches add up to its own. counts:
    further counts of the algorithm, metric to scalar; a step adds them up.
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
    """Return a micro-batch's clipped surrogate, by token ratios. clip: (ε_low, ε_high). dual: as in `clip_terms`."""
    ratio = token_ratio(log_ratios(logprobs, batch))
    terms = clip_terms(ratio, batch.advantages, low=clip[0], high=clip[1], dual=dual)
    return reduce_terms(terms, logprobs, batch, totals, aggregate=aggregate, masked=masked)


def log_ratios(logprobs: Tensor, batch: Batch) -> Tensor:
    """Return log π_θ - log π_old: (B, T) nats, 0 outside the mask."""
    return (logprobs - batch.old_logprobs).masked_fill(~batch.mask, 0.0)


def reduce_terms(
    terms: Terms, logprobs: Tensor, batch: Batch, totals: Totals, *, aggregate: Aggregate, masked: Tensor | None = None
) -> Loss:
    """Reduce a micro-batch's terms to a loss with metrics.

    logprobs: (B, T) nats, of the trained policy. totals: of the whole minibatch. masked: bool, tokens whose terms are
    dropped, but stay in every denominator, so that the others keep their weight (see `negative_spliced`). The batch's
    weights multiply the terms, likewise without effect on the denominators.
    """
    mask = batch.mask
    learnt = mask if masked is None else mask & ~masked
    value = terms.value if batch.weights is None else terms.value * batch.weights
    mean = average(value.masked_fill(~learnt, 0.0), batch, totals, aggregate)
    with torch.no_grad():
        difference = log_ratios(logprobs, batch)
        # The k3 estimator: unbiased under the old policy and never negative (Schulman, "Approximating KL", 2020).
        kl = average((difference.exp() - 1 - difference).masked_fill(~mask, 0.0), batch, totals, "token")
        entropy_estimate = average(-logprobs.masked_fill(~mask, 0.0), batch, totals, "token")
        cut = average(learnt & terms.cut, batch, totals, "token")
    counts = {} if terms.dual is None else {"dual_clip_tokens": (learnt & terms.dual).sum()}
    return Loss(mean, cut, kl, entropy_estimate, counts)


def average(terms: Tensor, batch: Batch, totals: Totals, aggregate: Aggregate) -> Tensor:
    """Return a micro-batch's share of its minibatch's mean, with samples' scales. terms: (B, T), 0 outside the mask."""
    if batch.scales is not None:
        terms = terms * batch.scales
    if aggregate == "token":
        return terms.sum() / (totals.tokens or 1)
    if aggregate == "sequence":
        return (terms.sum(-1) / batch.mask.sum(-1).clamp(min=1)).sum() / (totals.sequences or 1)
    return terms.sum() / (aggregate * (totals.sequences or 1))


def negative_spliced(advantages: Tensor, spliced: Tensor) -> Tensor:
    """Return the spliced tokens of rollouts worse than their siblings.

    (B, T) bool. Ours, not the paper's. They were not sampled there, so they are less likely than sampled ones, and
    pushing unlikely ids further down is the likely cause of collapses of training with repairs. For
    `batch_loss(masked=...)`.
    """
    return spliced & (advantages < 0)


def imitation_loss(logprobs: Tensor, batch: Batch) -> Tensor:
    """Return the imitation loss of spliced tokens, (B, T): -Â log π if Â > 0, else 0. Ours: a weighed cross-entropy.
    Spliced text is imitated if it led to a success, without ratio or clip, and otherwise ignored."""
    value = -batch.advantages.clamp(min=0.0) * logprobs
    if batch.weights is not None:
        value = value * batch.weights
    return value.masked_fill(~(batch.spliced & batch.mask), 0.0)
