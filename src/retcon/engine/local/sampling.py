"""Sampling of a batch by inverting the cumulative distribution.

A row's id is a function of its logits, its parameters and one uniform. On a CPU that holds bit for bit, whatever the
other rows are: every step over the vocabulary is one of torch's row-wise kernels (softmax, sums and cumulative sums
along the last dimension), or rounds each element separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from retcon.engine.types import GREEDY_BELOW, SamplingParams

STREAM_BLOCK = 64
"""Uniforms drawn ahead: a request may be allowed 20,000 tokens and generate 50."""
CELL = 128
"""Ids whose weights are summed before the cumulative sum, which is sequential and costs more than a softmax."""
FEW = 4096
"""Ids of a vocabulary for which one cumulative sum costs less than operations by cells."""
CHUNK = 2**20
"""Logits per thread that are sampled together on a CPU. More leaves its cache, and every temporary its heap."""
RANKED_GROWTH = 32
"""Truncation ranks 1, 32, 1024 … ids of a row until it knows which are kept. Most rows of a trained model need one;
ranking a whole vocabulary for all of them would cost more than the model."""
RANKED_FIRST = 1024
"""Ids that are ranked at first where not on a CPU: to look again, a GPU is waited for, which costs more."""
UNRANKED = 2**53
"""More ids than any vocabulary has, exact in float64: what top_k is where it is off, and at most."""
FAINT = 1e-30
"""Below this a float32 probability is about to lose its precision, and its log is taken from the logits."""


class RandomStream:
    """Uniforms of one request: float32 in [0, 1], drawn from its seed.

    Philox is counter-based: the stream depends on the seed alone, never on what else is in the batch.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
        self._ahead: list[float] = []

    def ahead(self, count: int) -> list[float]:
        """Return the next uniforms, which stay the next ones until `skip`."""
        while len(self._ahead) < count:
            self._ahead += self._generator.random(STREAM_BLOCK).astype(np.float32).tolist()
        return self._ahead[:count]

    def skip(self, count: int) -> None:
        del self._ahead[:count]


def invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the index at which the cumulative weight passes uniform · total: weights (B, V) ≥ 0, uniform (B,) in
    [0, 1] → (B,). A weight of zero is never chosen, also not at uniform 0 or 1. For nan weights any index: no fault."""
    vocab = weights.shape[-1]
    if vocab <= FEW:
        cumulative = _cumulative(weights)
        return _first_above(cumulative, cumulative[:, -1], uniform * cumulative[:, -1])[0]
    cumulative = _cumulative(_cells(weights, "sum"))
    cell, target = _first_above(cumulative, cumulative[:, -1], uniform * cumulative[:, -1])
    target = target - pad(cumulative, (1, 0)).gather(1, cell[:, None]).squeeze(1)
    within = _cell_ids(cell, vocab)
    inner = weights.gather(1, within.clamp(max=vocab - 1))
    if vocab % CELL:
        inner = inner.masked_fill(within >= vocab, 0.0)
    cumulative = _cumulative(inner)
    place, _ = _first_above(cumulative, cumulative[:, -1], target)
    return (cell * CELL + place).clamp_(max=vocab - 1)


def argmax(values: Tensor) -> Tensor:
    """Return the lowest index of each row's maximum: (B, V) → (B,). torch's is not vectorised on CPUs."""
    vocab = values.shape[-1]
    cell = _cells(values, "amax").argmax(-1)
    within = _cell_ids(cell, vocab)  # beyond the end the last id is repeated, and the lowest index wins
    return cell * CELL + values.gather(1, within.clamp(max=vocab - 1)).argmax(-1)


def entropies(logits: Tensor) -> list[float]:
    """Return each row's entropy: logits (B, V) of any dtype → (B,) nats."""
    found: list[float] = _cells(torch.special.entr(logits.float().softmax(-1)), "sum").sum(-1).tolist()
    return found


def _cells(values: Tensor, reduction: str) -> Tensor:
    """Reduce values (B, V) over cells of CELL tokens: (B, ⌈V / CELL⌉)."""
    whole = values.shape[-1] // CELL
    reduce = torch.sum if reduction == "sum" else torch.amax
    parts = []
    if whole:
        parts.append(reduce(values[:, : whole * CELL].unflatten(1, (whole, CELL)), dim=-1))
    if values.shape[-1] % CELL:
        parts.append(reduce(values[:, whole * CELL :], dim=-1, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _cell_ids(cell: Tensor, vocab: int) -> Tensor:
    """Return the ids of each row's cell: (B,) → (B, CELL), or (B, V) where the vocabulary is smaller."""
    return cell[:, None] * CELL + torch.arange(min(CELL, vocab), device=cell.device)


def _cumulative(weights: Tensor) -> Tensor:
    """Return the cumulative weights, which rise only at positive weights: (B, N) → (B, N). A CPU adds them one by one,
    so that they do; for GPUs see `make_rising`."""
    sums = weights.cumsum(-1)
    return sums if sums.device.type == "cpu" else make_rising(sums, weights)


def make_rising(sums: Tensor, weights: Tensor) -> Tensor:
    """Hold cumulative `sums` where a weight is zero or they fall: (B, N) → (B, N). Some GPUs add in another order for
    each place, so that rounding alone lifts a sum, or lowers it."""
    return sums.masked_fill(weights == 0, 0.0).cummax(-1).values


def _first_above(cumulative: Tensor, total: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index whose cumulative weight is above the target, and the target, below total: (B,), (B,).

    Only a positive weight lifts the cumulative weight above a target, so no other is chosen.
    """
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1)
    return index.clamp_(max=cumulative.shape[-1] - 1), target


@dataclass(frozen=True, slots=True)
class Truncation:
    """Rows of a batch that keep only some ids, and their limits.

    rows: (R,) of the batch; None is all of them. top_k: (R,) int64, the vocabulary or more where off. min_p, top_p:
    (R,). limited: (R,) bool, where top_k or min_p is on: top_p is then a share of what these leave. most: no top_k is
    larger.
    """

    rows: Tensor | None
    top_k: Tensor
    min_p: Tensor
    top_p: Tensor
    limited: Tensor
    most: int

    def __getitem__(self, rows: Tensor) -> Truncation:
        return Truncation(rows, self.top_k[rows], self.min_p[rows], self.top_p[rows], self.limited[rows], self.most)


def invert_truncated(probs: Tensor, keep: Truncation, uniform: Tensor, first: int = 1) -> tuple[Tensor, Tensor]:
    """Sample with `invert` over the kept tokens, most probable first.

    probs (R, V), uniform (R,) → ids (R,), kept mass (R,). `keep.rows` is ignored. Of equal probabilities the lower id
    ranks first. first: ids of each row that are ranked at first; no result depends on it.
    """
    count, vocab = probs.shape
    ids = torch.empty(count, dtype=torch.long, device=probs.device)
    mass = torch.empty(count, dtype=probs.dtype, device=probs.device)
    rows, width = torch.arange(count, device=probs.device), min(first, keep.most)
    while len(rows):
        some, of = (probs, keep) if len(rows) == count else (probs[rows], keep[rows])
        look = _sample_ranked(some, of, uniform[rows], min(width, vocab))
        ids[rows], mass[rows] = look.ids, look.mass
        ties, begun = look.ties, ~look.done
        left = (begun if ties is None else begun | ties.rows).nonzero().squeeze(1)  # for which a GPU is waited for
        if not len(left):
            break
        if ties is not None and len(tied := left[ties.rows[left]]):
            ids[rows[tied]] = _nth_equal(some[tied], ties.value[tied], ties.n[tied])
        rows = rows[begun]
        if len(rows):
            width = min(width * RANKED_GROWTH, int(keep.top_k[rows].max()))
    return ids, mass


@dataclass(frozen=True, slots=True)
class _Ties:
    """Rows whose id is the n-th, from 0, of equal probability: rows (R,) bool, value (R, 1), n (R,)."""

    rows: Tensor
    value: Tensor
    n: Tensor


@dataclass(frozen=True, slots=True)
class _RankedSample:
    """Ids and kept mass of R rows, and whether they are known. ties: rows that lack only the order of equals."""

    ids: Tensor
    mass: Tensor
    done: Tensor
    ties: _Ties | None = None


def _sample_ranked(probs: Tensor, keep: Truncation, uniform: Tensor, width: int) -> _RankedSample:
    """Sample as `invert_truncated` does, from the `width` most probable ids."""
    if width == 1:
        order = argmax(probs)[:, None]
        ranked = probs.gather(1, order)
    else:
        ranked, order = probs.topk(width, dim=-1)
    reached = _cumulative(ranked)
    place = torch.arange(width, device=probs.device)
    fits = (place < keep.top_k[:, None]) & (ranked >= keep.min_p[:, None] * ranked[:, :1])
    fitting = fits.sum(-1).clamp_(min=1)  # 0 only where probs are nan
    share = keep.top_p * torch.where(keep.limited, reached.gather(1, fitting[:, None] - 1).squeeze(1), 1.0)
    before = pad(reached[:, :-1], (1, 0))
    kept = (fits & (before < share[:, None])).sum(-1).clamp_(min=1)
    mass = reached.gather(1, kept[:, None] - 1).squeeze(1)
    rank = torch.minimum(_first_above(reached, mass, uniform * mass)[0], kept - 1)[:, None]
    ids = order.gather(1, rank).squeeze(1)
    if width == probs.shape[-1]:
        done = torch.ones_like(keep.limited)
    else:
        done = torch.where(keep.limited, (fitting < width) | (keep.top_k <= width), ~(mass < share))
    if width == 1:
        return _RankedSample(ids, mass, done)
    # topk ranks equal values in any order, and keeps any of those at its end.
    value = ranked.gather(1, rank)
    above = (ranked > value).sum(-1)
    tied = done & (((ranked == value).sum(-1) > 1) | (above == width - 1))
    return _RankedSample(ids, mass, done, _Ties(tied, value, rank.squeeze(1) - above))


def _nth_equal(values: Tensor, value: Tensor, n: Tensor) -> Tensor:
    """Return the n-th index, from 0, at which a row has its value: values (R, V), value (R, 1), n (R,) → (R,)."""
    equal = values == value
    first = pad(equal.sum(-1).cumsum(0)[:-1], (1, 0))
    return equal.nonzero()[first + n, 1]


@dataclass(frozen=True, slots=True)
class _SamplingPlan:
    """Steps for the rows `rows` of a batch; None for steps that no row needs.

    greedy: (B,) bool. divisor: (B, 1). plain: (B,) bool, rows that sample from the model's own distribution.
    """

    rows: slice
    all_greedy: bool
    greedy: Tensor | None
    divisor: Tensor | None
    truncation: Truncation | None
    plain: Tensor | None


class Sampler:
    """A sampler for the parameters of B rows."""

    def __init__(self, params: Sequence[SamplingParams], device: torch.device) -> None:
        self._device = device
        self._table = _table(params)
        self._plans: list[_SamplingPlan] = []
        self._planned = 0

    def __call__(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sample ids (B,) from logits (B, V) of any dtype and uniform (B,) float32.

        Returns ids int64, and logprobs and sampling_logprobs (B,) as in `Generation`, float32, in nats. Rows of nan
        logits have nan log-probs.
        """
        chunk = len(self._table)
        if self._device.type == "cpu":
            chunk = max(1, CHUNK * torch.get_num_threads() // logits.shape[-1])
        if self._planned != chunk:
            starts = range(0, len(self._table), chunk)
            self._plans = [_plan(self._table, slice(s, s + chunk), self._device) for s in starts]
            self._planned = chunk
        parts = [_sample(plan, logits[plan.rows], uniform[plan.rows]) for plan in self._plans]
        if len(parts) == 1:
            return parts[0]
        ids, logprobs, sampling = (torch.cat(part) for part in zip(*parts, strict=True))
        return ids, logprobs, sampling


def _table(params: Sequence[SamplingParams]) -> np.ndarray:
    """Return (B, 4) float64: temperature (0 where greedy), top_p, top_k and min_p, all off where greedy."""
    rows = [
        (p.temperature, p.top_p, min(p.top_k, UNRANKED), p.min_p)
        if p.temperature >= GREEDY_BELOW
        else (0.0, 1.0, 0, 0.0)
        for p in params
    ]
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def _plan(table: np.ndarray, rows: slice, device: torch.device) -> _SamplingPlan:
    temperature, top_p, top_k, min_p = table[rows].T

    def tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=device)

    greedy = temperature == 0
    tempered = (temperature != 1) & ~greedy
    limited = (top_k > 0) | (min_p > 0)
    truncated = limited | (top_p < 1)
    truncation = None
    if truncated.any():
        some = truncated.nonzero()[0]
        truncation = Truncation(
            rows=None if truncated.all() else tensor(some, torch.long),
            top_k=tensor(np.where(top_k > 0, top_k, UNRANKED)[some], torch.long),
            min_p=tensor(min_p[some], torch.float32),
            top_p=tensor(top_p[some], torch.float32),
            limited=tensor(limited[some], torch.bool),
            most=int(np.where(top_k > 0, top_k, UNRANKED)[some].max()),
        )
    plain = ~(greedy | tempered | truncated)
    return _SamplingPlan(
        rows=rows,
        all_greedy=bool(greedy.all()),
        greedy=tensor(greedy, torch.bool) if greedy.any() else None,
        divisor=tensor(np.where(tempered, temperature, 1.0), torch.float32)[:, None] if tempered.any() else None,
        truncation=truncation,
        plain=None if plain.all() else tensor(plain, torch.bool),
    )


def _sample(plan: _SamplingPlan, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sample the rows of one plan."""
    logits = logits.float()
    probs = logits.softmax(-1)
    if plan.all_greedy:
        ids = argmax(logits)
        logprobs = _log_of(probs, logits, ids)
        return ids, logprobs, torch.where(logprobs.isnan(), logprobs, 0.0)
    weights = probs if plan.divisor is None else (logits / plan.divisor).softmax(-1)
    truncation, mass = plan.truncation, None
    first = 1 if logits.device.type == "cpu" else RANKED_FIRST
    if truncation is None:
        ids = invert(weights, uniform)
    elif truncation.rows is None:
        ids, mass = invert_truncated(weights, truncation, uniform, first)
    else:
        ids, mass, some = invert(weights, uniform), torch.ones_like(uniform), truncation.rows
        ids[some], mass[some] = invert_truncated(weights[some], truncation, uniform[some], first)
    if plan.greedy is not None:
        ids = torch.where(plan.greedy, argmax(logits), ids)
    logprobs = _log_of(probs, logits, ids)
    if plan.plain is None:
        return ids, logprobs, logprobs
    chosen = weights.gather(1, ids[:, None]).squeeze(1)
    sampling = torch.where(plan.plain, logprobs, (chosen if mass is None else chosen / mass).log())
    if plan.greedy is not None:
        sampling = torch.where(plan.greedy & ~logprobs.isnan(), 0.0, sampling)
    return ids, logprobs, sampling


def _log_of(probs: Tensor, logits: Tensor, ids: Tensor) -> Tensor:
    """Return log-probs of `ids` (B,) from probabilities, which spares most rows a pass over (B, V)."""
    if probs.device.type != "cpu":  # whose pass costs less than to wait for how many are faint
        return logits.gather(1, ids[:, None]).squeeze(1) - logits.logsumexp(-1)
    chosen = probs.gather(1, ids[:, None]).squeeze(1)
    logprobs = chosen.log()
    faint = (chosen < FAINT).nonzero().squeeze(1)
    if len(faint):
        logprobs[faint] = logits[faint].log_softmax(-1).gather(1, ids[faint, None]).squeeze(1)
    return logprobs
