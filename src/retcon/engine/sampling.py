"""Sampling of a batch: one uniform per generated id, turned into an id by inverting the cumulative distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from retcon.engine.types import SamplingParams

NUCLEUS_GROWTH = 32
"""Top-p ranks 1, 32, 1024 … ids of a row until they reach p. Most rows of a trained model need one; ranking a whole
vocabulary for all of them would cost more than the model."""


def uniforms(seed: int, count: int) -> np.ndarray:
    """The random stream of one request: (count,) float32 in [0, 1), a prefix of the same stream for every count.

    Philox is counter-based: the stream depends on the seed alone, never on what else is in the batch.
    """
    draws = np.random.Generator(np.random.Philox(key=seed % 2**128)).random(count)
    return draws.astype(np.float32)


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index at which the cumulative weight passes uniform · total: weights (B, V) ≥ 0, uniform (B,) in [0, 1] → (B,).

    A weight of zero is never chosen, also not at uniform 0 or at a uniform that rounds to 1.
    """
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    # right=True: the first index whose cumulative weight is above the target, which only a positive weight can lift it.
    index = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)
    return index.clamp_(max=weights.shape[-1] - 1)  # of nan weights: the caller sees nan log-probs and no index fault


def invert_nucleus(probs: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """`invert` over the smallest set of ids whose probability reaches top_p: probs (B, V), top_p (B,) → (B,)."""
    vocab, width = probs.shape[-1], 1
    chosen = torch.empty(len(probs), dtype=torch.long, device=probs.device)
    rows = torch.arange(len(probs), device=probs.device)
    while len(rows):
        ranked, ids = probs[rows].topk(min(width, vocab), dim=-1)
        reached = ranked.cumsum(-1)
        before = torch.nn.functional.pad(reached[:, :-1], (1, 0))
        kept = ranked.masked_fill(before >= top_p[rows, None], 0.0)
        chosen[rows] = ids.gather(1, invert(kept, uniform[rows])[:, None]).squeeze(1)
        if width >= vocab:
            break
        rows, width = rows[reached[:, -1] < top_p[rows]], width * NUCLEUS_GROWTH  # the others are done
    return chosen


class Sampler:
    """The sampling parameters of a batch of B rows, as tensors."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        self._set(
            torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
            torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        )

    def _set(self, temperature: Tensor, top_p: Tensor) -> None:
        self.temperature, self.top_p = temperature, top_p
        greedy = temperature == 0
        # What the batch does not need is not computed: these are known before the first step.
        self._greedy = greedy if bool(greedy.any()) else None
        self._all_greedy = bool(greedy.all())
        divisor = temperature.masked_fill(greedy, 1.0)
        self._divisor = divisor[:, None] if bool((divisor != 1).any()) else None
        truncated = ((top_p < 1) & ~greedy).nonzero().squeeze(1)
        self._truncated = truncated if len(truncated) else None

    def select(self, rows: Tensor) -> None:
        """Keep `rows`, (B',) indices, in this order."""
        self._set(self.temperature[rows], self.top_p[rows])

    def __call__(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """logits (B, V) of any dtype, uniform (B,) → ids (B,) int64 and their log-probs (B,) float32, nats.

        The log-probs are those of the untempered, untruncated model.
        """
        logits = logits.float()
        logprobs = logits.log_softmax(-1)
        if self._all_greedy:
            ids = logits.argmax(-1)
        else:
            probs = (logits if self._divisor is None else logits / self._divisor).softmax(-1)
            if self._truncated is None:
                ids = invert(probs, uniform)
            elif len(self._truncated) == len(probs):
                ids = invert_nucleus(probs, self.top_p, uniform)
            else:
                ids, some = invert(probs, uniform), self._truncated
                ids[some] = invert_nucleus(probs[some], self.top_p[some], uniform[some])
            if self._greedy is not None:
                ids = torch.where(self._greedy, logits.argmax(-1), ids)
        return ids, logprobs.gather(1, ids[:, None]).squeeze(1)
