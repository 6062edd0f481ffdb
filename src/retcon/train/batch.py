"""Batches of samples as padded tensors. Every draw derives from a seed, not from a state."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retcon.core.errors import UnscoredTokens
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import Sample
from retcon.train.kernels.packing import Size, buckets


@dataclass(frozen=True, slots=True)
class Batch:
    """B samples, padded on the right to the longest, T. ids: (B, T) int64. mask, spliced: (B, T) bool. old_logprobs,
    advantages: (B, T) float32; old_logprobs are 0 outside the mask and nan where unknown under it. weights: (B, T)
    float32, by default 1; None if no sample has any. reference_logprobs: (B, T) float32, log π_ref, None if no sample
    has any. predicted: (B, T) bool, tool outputs to predict, None if no sample has any. scales: (B, 1) float32, weights
    of samples, None if all are 1."""

    ids: Tensor
    mask: Tensor
    spliced: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor | None
    reference_logprobs: Tensor | None = None
    predicted: Tensor | None = None
    scales: Tensor | None = None

    @property
    def scored(self) -> Tensor:
        """(B, T) bool, where log-probs are computed."""
        return self.mask if self.predicted is None else self.mask | self.predicted


def collate(samples: Sequence[Sample], *, pad_id: int = 0, device: torch.device | str = "cpu") -> Batch:
    """Pad `samples` into one batch. Raises ValueError if a first id is in the loss mask."""
    for sample in samples:
        if sample.scored[:1] == (1,):
            raise ValueError(
                f"trajectory {sample.source}: the first id of a sample cannot be learnt: nothing predicts it; put a "
                "prompt before it"
            )
    shape = (len(samples), max(len(s.ids) for s in samples))

    def padded(rows: Iterable[Sequence[float | None] | None], dtype: type[Any], fill: float) -> Tensor:
        found: np.ndarray = np.full(shape, fill, dtype)
        for into, row in zip(found, rows, strict=True):
            if row is not None:
                into[: len(row)] = np.array(row, dtype)  # where None becomes nan
        return torch.from_numpy(found)

    def known(weights: Sequence[float | None] | None) -> Sequence[float] | None:
        return None if weights is None else [1.0 if w is None else w for w in weights]

    mask = padded((s.mask for s in samples), np.bool_, False)
    weighed = any(s.weights is not None for s in samples)
    referred = any(s.reference is not None for s in samples)
    predicts = any(s.predicted is not None for s in samples)
    scaled = any(s.scale != 1 for s in samples)
    return Batch(
        ids=padded((s.ids for s in samples), np.int64, pad_id).to(device),
        mask=mask.to(device),
        spliced=padded((s.spliced for s in samples), np.bool_, False).to(device),
        old_logprobs=padded((s.logprobs for s in samples), np.float32, 0.0).masked_fill_(~mask, 0.0).to(device),
        advantages=padded((s.advantages for s in samples), np.float32, 0.0).to(device),
        weights=padded((known(s.weights) for s in samples), np.float32, 1.0).to(device) if weighed else None,
        reference_logprobs=padded((s.reference for s in samples), np.float32, 0.0).to(device) if referred else None,
        predicted=padded((s.predicted for s in samples), np.bool_, False).to(device) if predicts else None,
        scales=torch.tensor([[s.scale] for s in samples], device=device) if scaled else None,
    )


def check_scored(sample: Sample) -> None:
    """Check that tokens in the loss mask have log-probs. Raises UnscoredTokens."""
    missing = sum(m and p is None for m, p in zip(sample.mask, sample.logprobs, strict=True))
    if missing:
        raise UnscoredTokens(
            f"trajectory {sample.source}: {counted(missing, 'token')} of the loss mask without log-prob; "
            "score them under the purified prefix first"
        )


def computed_samples(samples: Iterable[Sample], bonus: float) -> list[Sample]:
    """Return the samples that an update computes: with a token in the loss mask and an advantage, a KL penalty (log
    π_ref), an entropy bonus or hindsight, or with tool outputs to predict. bonus: its coefficient."""

    def acts(sample: Sample) -> bool:
        pushed = bonus or sample.reference is not None or sample.hindsights or any(sample.advantages or ())
        return bool(any(sample.mask) and pushed) or any(sample.predicted or ())

    return [sample for sample in samples if acts(sample)]


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Sample]]:
    """Batch samples of similar length (see `buckets`), up to `max_tokens` padded ids."""
    found = buckets([Size(len(s.ids)) for s in samples], max_tokens=max_tokens)
    return [[samples[i] for i in bucket] for bucket in found]


def minibatches(samples: Sequence[Sample], count: int, *, seed: int, step: int, epochs: int = 1) -> list[list[Sample]]:
    """Shuffle samples into up to `count` minibatches per epoch. Their sizes differ by at most one."""
    count = min(count, len(samples))
    found: list[list[Sample]] = []
    for epoch in range(epochs):
        order = list(samples)
        later = (epoch,) if epoch else ()
        random.Random(derive("minibatches", seed, step, *later)).shuffle(order)
        found += [order[part::count] for part in range(count)]
    return found


def epoch_batch(total: int, size: int, *, seed: int, step: int) -> list[int]:
    """Return the indices of the batch of `step` (from 0).

    Every epoch is a new permutation of all `total`. A pure function, so that a resumed run needs no data position.
    """
    indices: list[int] = []
    position = step * size
    while len(indices) < size:
        epoch, start = divmod(position, total)
        order = list(range(total))
        random.Random(derive("epoch", seed, epoch)).shuffle(order)
        taken = order[start : start + size - len(indices)]
        indices += taken
        position += len(taken)
    return indices
