"""π_old of the policy loss: log-probs of engine and trainer, and their mismatch.

The engine and the trainer run different kernels, perhaps in different dtypes, so that the sampling policy is not quite
the updated one. Why that matters, and why float16 has less of it than bfloat16: arXiv 2510.26788.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from retcon.core.errors import ComputeWarning
from retcon.core.types import Sample
from retcon.models.devices import Computing
from retcon.train.batch import computed_samples
from retcon.train.kernels.forward import forwards

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGE = 0.02
"""Nats a token, on average, beyond which there is a warning."""


class Mismatch:
    """Mismatch between log-probs of trainer and engine, of equal tokens and weights: pure numerics, unless they are
    `stale`, as the engine's may be of older weights. cut: tokens whose importance weight was cut."""

    def __init__(self, *, stale: bool = False) -> None:
        self._stale, self.cut = stale, 0
        self._tokens, self._sum, self._max, self._kl = 0, 0.0, 0.0, 0.0

    @property
    def empty(self) -> bool:
        return self._tokens == 0

    def add(self, trainer: Tensor, engine: Tensor, mask: Tensor) -> None:
        """Add a micro-batch. trainer, engine: (B, T) nats. mask: (B, T) bool, the loss mask."""
        difference = (trainer.detach() - engine)[mask].double()
        if len(difference):
            self._tokens += len(difference)
            self._sum += difference.abs().sum().item()
            self._max = max(self._max, difference.abs().max().item())
            self._kl += (torch.expm1(difference) - difference).sum().item()

    def metrics(self) -> dict[str, float | None]:
        """Return metrics. mismatch_mean, mismatch_max: |trainer - engine|, nats a token. mismatch_kl: KL(engine ‖
        trainer), nats a token (the k3 estimator, see `loss.reduced`). None without tokens. Warns (ComputeWarning) of a
        mean beyond LARGE, unless `stale`."""
        if not self._tokens:
            return dict.fromkeys(("mismatch_mean", "mismatch_max", "mismatch_kl"))
        mean = self._sum / self._tokens
        if mean > LARGE and not self._stale:
            # Without this step's figure, so that Python shows it once and not at every step.
            warnings.warn(
                f"rollouts came with log-probs that differ from the trainer's by more than {LARGE} nats a token on "
                "average (mismatch_mean in metrics.jsonl): set rl.old_logprobs=recompute, or a compute.rollout_dtype "
                "with a longer mantissa (float16, float32)",
                ComputeWarning,
                stacklevel=2,
            )
        return {"mismatch_mean": mean, "mismatch_max": self._max, "mismatch_kl": self._kl / self._tokens}


@torch.no_grad()
def recompute(
    model: PreTrainedModel,
    samples: Sequence[Sample],
    mismatch: Mismatch,
    computing: Computing,
    *,
    weighing: tuple[str, float] = ("none", 1.0),
    bonus: float = 0.0,
) -> list[Sample]:
    """Give samples the trainer's own log-probs, of the policy before its update.

    mismatch: gets the differences to the engine's, unless `computing` has another temperature than those, 1. weighing:
    mode and cap of `importance_weights`, which multiply the samples' weights; mode `none` for none. bonus: coefficient
    of entropy. Samples that the update does not compute (see `computed_samples`) are unchanged."""
    mode, cap = weighing
    model.eval()
    own: dict[int, Sample] = {}
    learnt = computed_samples(samples, bonus)
    if not learnt:
        return list(samples)
    with forwards(model, learnt, computing) as parts:
        for part in parts:
            batch = part.batch
            if computing.temperature == 1.0:
                mismatch.add(part.logprobs, batch.old_logprobs, batch.mask)
            for sample, row in zip(part.samples, part.logprobs.tolist(), strict=True):
                found = tuple(p if m else None for p, m in zip(row, sample.mask, strict=False))
                own[id(sample)] = replace(sample, logprobs=found)
            if mode == "none":
                continue
            weights = importance_weights(part.logprobs, batch.old_logprobs, batch.mask, mode=mode, cap=cap)
            mismatch.cut += int((batch.mask & (weights == (cap if mode.endswith("truncate") else 0.0))).sum())
            weights = weights if batch.weights is None else weights * batch.weights
            for sample, values in zip(part.samples, weights.tolist(), strict=True):
                own[id(sample)] = replace(own[id(sample)], weights=tuple(values[: len(sample.ids)]))
    return [own.get(id(sample), sample) for sample in samples]


def importance_weights(trainer: Tensor, engine: Tensor, mask: Tensor, *, mode: str, cap: float) -> Tensor:
    """Return capped importance weights π_old / μ, (B, T).

    They are 1 outside the mask. Weighted samples estimate under π_old: truncated importance sampling (Yao et al., "Your
    efficient RL framework secretly brings you off-policy RL training", 2025). The modes are those of TRL's
    `vllm_importance_sampling_mode`. trainer, engine: (B, T) nats, log π_old and log μ of the sampled tokens. mode:
    `token_…` weighs each token by its own ratio, `sequence_…` all of a sequence's by their product; for larger ratios
    `…_truncate` takes the cap, `…_mask` takes 0.
    """
    level, _, beyond = mode.partition("_")
    difference = (trainer - engine).masked_fill(~mask, 0.0)
    if level == "sequence":
        difference = difference.sum(-1, keepdim=True).expand_as(difference)
    ratio = difference.clamp(max=20.0).exp()  # finite
    weights = ratio.clamp(max=cap) if beyond == "truncate" else ratio.masked_fill(ratio > cap, 0.0)
    return torch.where(mask, weights, 1.0)


def kl_terms(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Estimate KL(π_θ ‖ π_ref) per token, (B, T) nats, with gradient.

    k1: log π_θ - log π_ref. k2: half its square, whose gradient is that of the KL. k3: π_ref / π_θ - 1 - log of that,
    never negative; GRPO's (arXiv 2402.03300, equation 4). Source: Schulman, "Approximating KL", 2020.
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return (-difference).exp() - 1 + difference


@torch.no_grad()
def with_reference(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> list[Sample]:
    """Give samples log π_ref of their loss masks, also without advantages. model: π_ref."""
    model.eval()
    learnt = [s for s in samples if any(s.mask)]
    found: dict[int, Sample] = {}
    if learnt:
        with forwards(model, learnt, computing) as parts:
            for part in parts:
                for sample, row in zip(part.samples, part.logprobs.tolist(), strict=True):
                    found[id(sample)] = replace(sample, reference=tuple(row[: len(sample.ids)]))
    return [found.get(id(sample), sample) for sample in samples]
