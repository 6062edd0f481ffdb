"""Samples laid out one after another in a single row, without padding, what several of them begin with only once.

The linear layers of a model see (1, N) ids, none of them padding, at the positions they have in their samples. Only
attention needs to know who sees whom: it goes by rows (a prompt, what follows it in one sample, or a whole sample),
padded to their bucket's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from retcon.core.types import Sample
from retcon.train.kernels.buckets import Size, buckets

MASK = 1 << 24
"""Elements of an attention mask at most: samples whose mask would be larger do not share their prompt."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the B rows of a bucket see before themselves: F prompts, padded on the right to P tokens.

    index: (F·P,) where each id is among all; kept: which of them are no padding, None where all
    are. count: F.
    rows: (B,) whose prompt each row has. mask: (B or 1, 1, T, P + T) to add to attention scores.
    """

    index: Tensor
    kept: Tensor | None
    count: int
    rows: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Bucket:
    """One call of attention: `rows` rows, the tokens start…stop, padded on the right to `width`.

    index: (rows·width,) where each padded id is from, counted from start; kept: (stop - start,) which of them are
    no padding. Both None where nothing is padded. prefix: None for rows that begin at position 0.
    """

    start: int
    stop: int
    rows: int
    width: int
    index: Tensor | None
    kept: Tensor | None
    prefix: Prefix | None


@dataclass(frozen=True, slots=True)
class Packing:
    """ids, positions: (1, N) int64. buckets: of attention, in the order of tokens. source: (L,) which id's hidden state
    predicts each of the learnt ids, sample after sample. padded: ids that attention computes, padding among them."""

    ids: Tensor
    positions: Tensor
    buckets: tuple[Bucket, ...]
    source: Tensor
    padded: int


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of a micro-batch, by index, that begin with the same `prompt` ids; 0 for a sample on its own."""

    members: tuple[int, ...]
    prompt: int


@dataclass(frozen=True, slots=True)
class _Row:
    """Ids start…stop of `sample`; `family` whose prompt they are, or whose prompt they follow, if any."""

    sample: int
    start: int
    stop: int
    family: int | None


def prompt_length(sample: Sample) -> int:
    """Ids before the first that is learnt: what the rollouts of a group have in common."""
    return sample.mask.index(1) if 1 in sample.mask else len(sample.ids)


def families(samples: Sequence[Sample]) -> list[Family]:
    """Who shares a prompt, in order of first appearance. A sample that is learnt nowhere, or alone, shares nothing."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for i, sample in enumerate(samples):
        alike.setdefault(sample.ids[: prompt_length(sample)], []).append(i)
    found = []
    for prompt, members in alike.items():
        longest = max(len(samples[i].ids) for i in members)
        if len(members) > 1 and prompt and (longest - len(prompt)) * longest <= MASK:
            found.append(Family(tuple(members), len(prompt)))
        else:
            found += [Family((i,), 0) for i in members]
    return found


def packed_batches(samples: Sequence[Sample], max_tokens: int, *, share: bool) -> list[list[Sample]]:
    """Micro-batches of at most `max_tokens` computed ids, families together; a longer sample goes alone.

    A family that does not fit is cut, and each part computes its prompt.
    """
    groups = families(samples) if share else [Family((i,), 0) for i in range(len(samples))]
    parts: list[tuple[int, list[Sample]]] = []
    for family in groups:
        members = sorted((samples[i] for i in family.members), key=lambda s: len(s.ids), reverse=True)
        cost = 0
        for sample in members:
            own = len(sample.ids) - family.prompt
            if cost and cost + own <= max_tokens:
                cost += own
                parts[-1][1].append(sample)
                parts[-1] = (cost, parts[-1][1])
            else:
                cost = family.prompt + own
                parts.append((cost, [sample]))
    # The longest first, so that the rows of a micro-batch are of like length.
    parts.sort(key=lambda part: len(part[1][0].ids), reverse=True)
    batches: list[list[Sample]] = []
    room = 0
    for cost, part in parts:
        if batches and cost <= room:
            batches[-1] += part
            room -= cost
        else:
            batches.append([*part])
            room = max_tokens - cost
    return batches


def pack(samples: Sequence[Sample], *, share: bool, dtype: torch.dtype, device: torch.device) -> Packing:
    """The layout of `samples`. dtype: of the masks, that in which attention is computed."""
    laid = _lay(samples, [f for f in families(samples) if f.prompt] if share else [])
    order = [laid.rows[n] for group in laid.groups for n in group]
    ids = np.concatenate([np.asarray(samples[r.sample].ids[r.start : r.stop], np.int64) for r in order])
    positions = np.concatenate([np.arange(r.start, r.stop) for r in order])
    layout = tuple(_bucket(laid, group, dtype, device) for group in laid.groups)
    return Packing(
        ids=torch.from_numpy(ids)[None].to(device),
        positions=torch.from_numpy(positions)[None].to(device),
        buckets=layout,
        source=torch.from_numpy(_source(samples, laid)).to(device),
        padded=sum(b.rows * b.width for b in layout),
    )


@dataclass(frozen=True, slots=True)
class _Laid:
    """rows: those of the `prompts` shared prompts, then one for each sample. groups: who is in which bucket. starts:
    where each row is among all tokens."""

    rows: list[_Row]
    prompts: int
    groups: list[list[int]]
    starts: np.ndarray


def _lay(samples: Sequence[Sample], shared: list[Family]) -> _Laid:
    family_of = {i: n for n, family in enumerate(shared) for i in family.members}
    rows = [_Row(f.members[0], 0, f.prompt, n) for n, f in enumerate(shared)]
    for i, sample in enumerate(samples):
        n = family_of.get(i)
        rows.append(_Row(i, 0 if n is None else shared[n].prompt, len(sample.ids), n))
    groups = buckets([Size(row.stop - row.start, row.start) for row in rows], max_mask=MASK)
    starts, at = np.zeros(len(rows), np.int64), 0
    for group in groups:
        for n in group:
            starts[n] = at
            at += rows[n].stop - rows[n].start
    return _Laid(rows, len(shared), groups, starts)


def _source(samples: Sequence[Sample], laid: _Laid) -> np.ndarray:
    found = []
    own = zip(samples, laid.rows[laid.prompts :], laid.starts[laid.prompts :], strict=True)
    for sample, row, start in own:
        before = np.flatnonzero(np.asarray(sample.mask)) - 1
        source = start + before - row.start
        if row.family is not None:
            # Of a prompt, only its last id predicts what is learnt.
            source[before < row.start] = laid.starts[row.family] + row.start - 1
        found.append(source)
    return np.concatenate(found)


def _bucket(laid: _Laid, group: list[int], dtype: torch.dtype, device: torch.device) -> Bucket:
    rows = [laid.rows[n] for n in group]
    lengths = np.array([row.stop - row.start for row in rows])
    start = int(laid.starts[group[0]])
    index, kept = _padded(laid.starts[group] - start, lengths)
    full = len(kept) == index.size
    return Bucket(
        start=start,
        stop=start + int(lengths.sum()),
        rows=len(group),
        width=index.shape[1],
        index=None if full else torch.from_numpy(index.reshape(-1)).to(device),
        kept=None if full else torch.from_numpy(kept).to(device),
        prefix=_prefix(laid, rows, index.shape[1], dtype, device) if rows[0].start else None,
    )


def _prefix(laid: _Laid, rows: list[_Row], width: int, dtype: torch.dtype, device: torch.device) -> Prefix:
    which, of = np.unique([row.family for row in rows], return_inverse=True)
    index, kept = _padded(laid.starts[which], np.array([laid.rows[n].stop for n in which]))
    mask = _mask(np.array([row.start for row in rows]), width, dtype)
    return Prefix(
        index=torch.from_numpy(index.reshape(-1)).to(device),
        kept=None if len(kept) == index.size else torch.from_numpy(kept).to(device),
        count=len(which),
        rows=torch.from_numpy(of.reshape(-1)).to(device),
        mask=mask.to(device),
    )


def _padded(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, width) indices of rows at `starts`, padding repeating their last; and, counted through all rows, which of
    them are no padding."""
    offset = np.arange(lengths.max())
    index = starts[:, None] + np.minimum(offset, lengths[:, None] - 1)
    return index, np.flatnonzero(offset < lengths[:, None])


def _mask(before: np.ndarray, width: int, dtype: torch.dtype) -> Tensor:
    """-inf where a row must not look: behind the end of its prompt of `before` ids, and ahead of itself. One for all
    rows where their prompts are of one length."""
    prompt = torch.from_numpy(before if len(set(before)) > 1 else before[:1])
    past_prompt = (torch.arange(int(before.max())) >= prompt[:, None])[:, None].expand(-1, width, -1)
    ahead = torch.ones(width, width, dtype=torch.bool).triu(1).expand(len(prompt), -1, -1)
    blocked = torch.cat([past_prompt, ahead], -1)
    return torch.zeros(blocked.shape, dtype=dtype).masked_fill_(blocked, -torch.inf)[:, None]
