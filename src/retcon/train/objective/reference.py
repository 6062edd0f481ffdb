"""The KL penalty to π_ref, the model that training starts from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from retcon.core.types import Sample
from retcon.train.kernels.computing import Computing
from retcon.train.kernels.forward import forwards

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def kl_terms(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """Each token's estimate of KL(π_θ ‖ π_ref), (B, T) nats, with gradient (Schulman, "Approximating KL", 2020).

    k1: log π_θ - log π_ref. k2: half its square, whose gradient is that of the KL. k3: π_ref / π_θ - 1 - log of that,
    never negative; GRPO's (arXiv 2402.03300, equation 4).
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return (-difference).exp() - 1 + difference


@torch.no_grad()
def with_reference(model: PreTrainedModel, samples: Sequence[Sample], computing: Computing) -> list[Sample]:
    """`samples` with log π_ref of what is learnt from, those without an advantage among them. model: π_ref."""
    model.eval()
    learnt = [s for s in samples if any(s.mask)]
    found: dict[int, Sample] = {}
    if learnt:
        with forwards(model, learnt, computing) as parts:
            for part in parts:
                for sample, row in zip(part.samples, part.logprobs.tolist(), strict=True):
                    found[id(sample)] = replace(sample, reference=tuple(row[: len(sample.ids)]))
    return [found.get(id(sample), sample) for sample in samples]
