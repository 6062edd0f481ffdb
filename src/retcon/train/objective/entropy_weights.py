"""Weights of tokens by how unsure the policy was of them: AEPO's entropy-aware advantage (arXiv 2510.14545)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import torch

from retcon.core.types import Sample
from retcon.train.kernels.computing import Computing
from retcon.train.kernels.forward import forwards

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def standardised(entropies: Sequence[float], weight: float) -> list[float]:
    """1 + a (H_t - mean H) / std H of each token, never below 0; 1 for all where they do not differ. weight: a.

    A weight of the loss's term: the surrogate is as many times as large as a positive factor of the advantage.
    """
    spread = stdev(entropies) if len(entropies) > 1 else 0.0
    if not spread:
        return [1.0] * len(entropies)
    mean = fmean(entropies)
    return [max(0.0, 1 + weight * (entropy - mean) / spread) for entropy in entropies]


@torch.no_grad()
def weighed_by_entropy(
    model: PreTrainedModel, samples: Sequence[Sample], computing: Computing, weight: float
) -> list[Sample]:
    """`samples` with these weights, which multiply those that they have; the entropies are those of `model` before each
    token in the loss masks of all samples that have an advantage. The others stay as they are."""
    model.eval()
    learnt = [s for s in samples if any(s.advantages or ()) and any(s.mask)]
    if not learnt:
        return list(samples)
    found: dict[int, list[float]] = {}
    with forwards(model, learnt, computing, entropies=True) as parts:
        for part in parts:
            assert part.entropies is not None
            for sample, row in zip(part.samples, part.entropies.tolist(), strict=True):
                found[id(sample)] = [e for e, m in zip(row, sample.mask, strict=False) if m]
    weights = iter(standardised([e for s in learnt for e in found[id(s)]], weight))
    own = {id(s): replace(s, weights=_times(s, [next(weights) for _ in found[id(s)]])) for s in learnt}
    return [own.get(id(sample), sample) for sample in samples]


def _times(sample: Sample, factors: Sequence[float]) -> tuple[float | None, ...]:
    """The sample's weights, each masked-in token's times its factor. factors: of those tokens alone."""
    left = iter(factors)
    had = sample.weights or (None,) * len(sample.ids)
    return tuple(next(left) * (1.0 if w is None else w) if m else w for w, m in zip(had, sample.mask, strict=True))
