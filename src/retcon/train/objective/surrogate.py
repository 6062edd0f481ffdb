"""What a token's share of the policy loss is: the ratio π_θ / π_old, and what is made of it and the advantage.

Shapes: B sequences, padded on the right to T tokens. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
