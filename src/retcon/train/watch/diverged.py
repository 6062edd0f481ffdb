"""Losses that are no number: which samples they come from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from retcon.core.errors import TrainingDiverged
from retcon.core.types import Sample
from retcon.train.kernels.forward import Part

NAMED = 5
"""Samples that a message names at most."""


def refuse_diverged(loss: float, part: Part, batch: str) -> None:
    """Raises TrainingDiverged where the loss of a micro-batch is not finite: names the batch, and those of its samples
    that the model gives no finite log-prob, or whose advantage is none. Nothing of the batch has moved weights."""
    if math.isfinite(loss):
        return
    logprobs = torch.isfinite(part.logprobs).all(-1).tolist()
    advantages = [all(map(math.isfinite, sample.advantages or ())) for sample in part.samples]
    known = zip(part.samples, logprobs, advantages, strict=True)
    broken = [sample for sample, found, given in known if not (found and given)]
    raise TrainingDiverged(f"{batch}: the loss is {loss}, by {_named(broken or part.samples)}")


def _named(samples: Sequence[Sample]) -> str:
    names = [sample.source or f"a sample of {len(sample.ids)} tokens" for sample in samples[:NAMED]]
    more = len(samples) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
