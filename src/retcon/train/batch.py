"""From samples to padded tensors, and who is in which batch. Everything is drawn from seeds, nothing from a state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retcon.core.errors import UnscoredIds
from retcon.core.seeds import derive
from retcon.core.types import Sample

MICRO_BATCH_IDS = 2048
"""Padded ids of one forward and backward: bounds memory; on a CPU more is also slower, as it leaves the cache."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B samples, padded on the right to the longest, T. ids: (B, T) int64. mask, spliced: (B, T) bool. old_logprobs,
    advantages: (B, T) float32, 0 where unknown, which is nowhere under the mask once `scored` was asked for. weights:
    (B, T) float32, 1 where a sample has none; None where no sample has any."""

    ids: Tensor
    mask: Tensor
    spliced: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor | None


def collate(samples: Sequence[Sample], *, pad_id: int = 0) -> Batch:
    """One batch of all `samples`. Raises ValueError where an id is to be learnt that nothing precedes."""
    width = max(len(s.ids) for s in samples)
    if any(s.mask[:1] == (1,) for s in samples):
        raise ValueError("the first id of a sample cannot be learnt: nothing predicts it; put a prompt before it")

    def padded(rows: Sequence[Sequence[float | int]], fill: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=dtype)

    weighed = any(s.weights is not None for s in samples)
    weights = [[1.0 if w is None else w for w in s.weights or (None,) * len(s.ids)] for s in samples]
    return Batch(
        ids=padded([s.ids for s in samples], pad_id, torch.long),
        mask=padded([s.mask for s in samples], 0, torch.bool),
        spliced=padded([s.spliced for s in samples], 0, torch.bool),
        old_logprobs=padded([[p or 0.0 for p in s.logprobs] for s in samples], 0.0, torch.float32),
        advantages=padded([s.advantages or [0.0] * len(s.ids) for s in samples], 0.0, torch.float32),
        weights=padded(weights, 1.0, torch.float32) if weighed else None,
    )


def check_scored(sample: Sample) -> None:
    """Raises UnscoredIds where an id under the mask has no log-prob: None is not zero."""
    missing = sum(m and p is None for m, p in zip(sample.mask, sample.logprobs, strict=True))
    if missing:
        raise UnscoredIds(f"{missing} ids of a sample have no log-prob; score them under the purified prefix first")


def micro_batches(samples: Sequence[Sample], max_ids: int = MICRO_BATCH_IDS) -> list[list[Sample]]:
    """Samples of like length together, each batch of at most `max_ids` padded ids (a longer sample goes alone)."""
    batches: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda s: len(s.ids), reverse=True):
        # The longest of a batch comes first, and so sets its width.
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0].ids) <= max_ids:
            batches[-1].append(sample)
        else:
            batches.append([sample])
    return batches


def minibatches(samples: Sequence[Sample], count: int, *, seed: int, step: int) -> list[list[Sample]]:
    """`samples` shuffled and dealt into at most `count` minibatches whose sizes differ by one at most."""
    order = list(samples)
    random.Random(derive("minibatches", seed, step)).shuffle(order)
    count = min(count, len(order))
    return [order[part::count] for part in range(count)]


def epoch_batch(total: int, size: int, *, seed: int, step: int) -> list[int]:
    """Indices of the batch of `step` (from 0): a new permutation of all `total` every epoch, read in stretches.

    A function of its arguments alone, so that a resumed run needs no data position.
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
