"""Weights for what the engine sampled and the trainer scores differently, in place of pretending that they agree.

What was sampled from μ, the engine's policy, is an estimate under π_old, the trainer's, when each term is multiplied by
π_old / μ: truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings you off-policy RL
training", 2025), or masked where that is beyond a cap. The four modes are those of TRL's
`vllm_importance_sampling_mode`. Pure.
"""

from __future__ import annotations

import torch
from torch import Tensor


def importance_weights(trainer: Tensor, engine: Tensor, mask: Tensor, *, mode: str, cap: float) -> Tensor:
    """(B, T) weights, 1 outside the mask. trainer, engine: (B, T) nats, log π_old and log μ of the sampled tokens.

    mode: `token_…` weighs each token by its own ratio, `sequence_…` all of a sequence's by their product; `…_truncate`
    takes the cap where the ratio is larger, `…_mask` takes 0 there.
    """
    level, _, beyond = mode.partition("_")
    difference = (trainer - engine).masked_fill(~mask, 0.0)
    if level == "sequence":
        difference = difference.sum(-1, keepdim=True).expand_as(difference)
    ratio = difference.clamp(max=20.0).exp()  # finite
    weights = ratio.clamp(max=cap) if beyond == "truncate" else ratio.masked_fill(ratio > cap, 0.0)
    return torch.where(mask, weights, 1.0)
