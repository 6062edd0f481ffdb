"""Packing of samples into one row, with shared prefixes once.

The linear layers of a model see (1, N) ids without padding, at the positions they have in their samples. Only attention
needs to know which id sees which: it works by rows (a shared prefix, the rest of a sample, or a whole sample), padded
to their bucket's width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from retcon.core.types import Sample

MASK = 1 << 24
"""Most elements of an attention mask: samples whose mask would be larger share no prefix."""


@dataclass(frozen=True, slots=True)
class Row:
    """Ids start…stop of `sample`, which follow the row `above`.

    above: None for a row from position 0. A row that others follow is of several samples; `sample` is any of them."""

    sample: int
    start: int
    stop: int
    above: int | None


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of a micro-batch, by index, with a common prompt. prompt: its ids, 0 for a single sample."""

    members: tuple[int, ...]
    prompt: int


def prompt_length(sample: Sample) -> int:
    """Count the ids before the first learnt one, a group's prompt; 0 without learnt ids."""
    return sample.scored.index(1) if 1 in sample.scored else 0


def families(samples: Sequence[Sample]) -> list[Family]:
    """Group samples by prompt, in order of first appearance; one without learnt ids shares nothing."""
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


def rows_of(samples: Sequence[Sample], *, share: bool) -> tuple[list[Row], list[int]]:
    """Return the rows to compute, and the last row of each sample.

    Shared prefixes come first, each row after those that it follows, then a row for each sample."""
    rows: list[Row] = []
    follows: list[tuple[int, int | None]] = [(0, None)] * len(samples)  # where a sample's own row begins, after which
    for family in families(samples) if share else ():
        if not family.prompt:
            continue
        rows.append(Row(family.members[0], 0, family.prompt, None))
        waiting = [(tree, family.prompt, len(rows) - 1) for tree in trees(samples, family.members)]
        while waiting:
            members, start, above = waiting.pop(0)
            if len(members) == 1:
                follows[members[0]] = start, above
                continue
            alike = [shared_length(samples[one], samples[other]) for one, other in pairwise(members)]
            stop = min(alike)
            if stop > start:
                rows.append(Row(members[0], start, stop, above))
                start, above = stop, len(rows) - 1
            cuts = [0, *(n for n, length in enumerate(alike, 1) if length == stop), len(members)]
            waiting += [(members[first:last], start, above) for first, last in pairwise(cuts)]
    shared = len(rows)
    rows += [Row(i, follows[i][0], len(sample.ids), follows[i][1]) for i, sample in enumerate(samples)]
    return rows, list(range(shared, len(rows)))


def trees(samples: Sequence[Sample], members: Sequence[int]) -> list[tuple[int, ...]]:
    """Group samples by tree, and sort each tree by common prefix."""
    found: dict[object, list[int]] = {}
    for i in members:
        found.setdefault(samples[i].tree or i, []).append(i)
    return [tuple(sorted(tree, key=lambda i: samples[i].ids)) if len(tree) > 1 else (*tree,) for tree in found.values()]


def shared_length(one: Sample, other: Sample) -> int:
    """Return the ids of the common prefix, less than either sample: each keeps its own row."""
    length = min(len(one.ids), len(other.ids)) - 1
    unequal = np.fromiter(one.ids, np.int64, length) != np.fromiter(other.ids, np.int64, length)
    return int(unequal.argmax()) if unequal.any() else length


def chain(rows: Sequence[Row], row: int | None) -> list[int]:
    """Return the rows down to this one, this one last; empty for None."""
    found = []
    while row is not None:
        found.append(row)
        row = rows[row].above
    return found[::-1]


PADDING = 0.15
"""Largest share of padding in a bucket of more than one row."""


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a row: its own ids, and those it sees before them."""

    own: int
    prefix: int = 0


def buckets(sizes: Sequence[Size], *, max_tokens: int | None = None, max_mask: int | None = None) -> list[list[int]]:
    """Group rows by index into buckets, longest first, by prefix or none.

    In a bucket of several rows, at most PADDING of their ids is padding, and of the ids they see, which are padded to
    the longest prefix and the longest row. max_tokens: padded, of a bucket; a longer row goes alone. max_mask: rows ×
    tokens × ids seen, for prefixes of several lengths.
    """
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i].prefix > 0, -sizes[i].own, -sizes[i].prefix))
    return list(_greedy(order, sizes, max_tokens, max_mask))


def _greedy(
    order: list[int], sizes: Sequence[Size], max_tokens: int | None, max_mask: int | None
) -> Iterator[list[int]]:
    bucket: list[int] = []
    own = seen = longest = 0
    for index in order:
        size = sizes[index]
        count = len(bucket) + 1
        if bucket:
            first = sizes[bucket[0]]  # the widest
            prefix = max(longest, size.prefix)
            area = count * first.own * (first.own + prefix)
            if (
                bool(size.prefix) != bool(first.prefix)
                or own + size.own < (1 - PADDING) * count * first.own
                or seen + size.own + size.prefix < (1 - PADDING) * count * (first.own + prefix)
                or (max_tokens is not None and count * first.own > max_tokens)
                or (max_mask is not None and prefix > 0 and area > max_mask)
            ):
                yield bucket
                bucket, own, seen, longest = [], 0, 0, 0
        bucket.append(index)
        own, seen, longest = own + size.own, seen + size.own + size.prefix, max(longest, size.prefix)
    if bucket:
        yield bucket


@dataclass(frozen=True, slots=True)
class Prefix:
    """Prefixes of the B rows of a bucket: F of them, padded on the right to P tokens.

    index: (F·P,) place of each id among all; kept: those without padding, None for all. distinct: whether no id is in
    two of them, as a common prompt would be. count: F. rows: (B,) prefix of each row. mask: (B or 1, 1, T, P + T) to
    add to attention scores.
    """

    index: Tensor
    kept: Tensor | None
    distinct: bool
    count: int
    rows: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Bucket:
    """One call of attention: `rows` rows, the tokens start…stop, padded on the right to `width`.

    index: (rows·width,) source of each padded id, counted from start; kept: (stop - start,) those without padding.
    Both None: no padding. prefix: None for rows that begin at position 0.
    """

    start: int
    stop: int
    rows: int
    width: int
    index: Tensor | None
    kept: Tensor | None
    prefix: Prefix | None


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Learnt ids that are equal, after an equal prefix, in several samples. first: (U,), one of each; of: (L,), the
    index in `first` of each of all L."""

    first: Tensor
    of: Tensor


@dataclass(frozen=True, slots=True)
class Packing:
    """A packed micro-batch. ids, positions: (1, N) int64. buckets: of attention, in the order of tokens. source: (L,)
    the id whose hidden state predicts each learnt id, sample after sample. repeats: None if no id is learnt twice.
    padded: ids that attention computes, padding among them."""

    ids: Tensor
    positions: Tensor
    buckets: tuple[Bucket, ...]
    source: Tensor
    padded: int
    repeats: SharedPrefixes | None = None


def packed_batches(samples: Sequence[Sample], max_tokens: int, *, share: bool, copied: int = 0) -> list[list[Sample]]:
    """Group samples into micro-batches of up to `max_tokens` computed ids.

    Families stay together, and within them trees; a longer sample goes alone. A family that does not fit is cut, and
    each part computes its prompt. copied: ids of a shared prefix that count as one, since attention copies their keys
    and values; 0 if they count for nothing.
    """
    groups = families(samples) if share else [Family((i,), 0) for i in range(len(samples))]
    parts: list[tuple[int, list[Sample]]] = []
    for family in groups:
        by_tree = [[samples[i] for i in tree] for tree in trees(samples, family.members)]
        by_tree.sort(key=lambda tree: max(len(s.ids) for s in tree), reverse=True)
        cost = 0
        for tree in by_tree:
            before = None
            for sample in tree:
                known = family.prompt if before is None else max(family.prompt, shared_length(before, sample))
                own = len(sample.ids) - known + (known // copied if copied else 0)
                if cost and cost + own <= max_tokens:
                    cost += own
                    parts[-1][1].append(sample)
                    parts[-1] = (cost, parts[-1][1])
                else:
                    cost = len(sample.ids)
                    parts.append((cost, [sample]))
                before = sample
    # The longest first, so that the rows of a micro-batch have similar lengths.
    parts.sort(key=lambda part: len(part[1][0].ids), reverse=True)
    batches: list[list[Sample]] = []
    room = 0
    for cost, part in parts:
        if cost > room:
            batches.append([])
            room = max_tokens
        batches[-1] += part
        room -= cost
    return batches


def pack(samples: Sequence[Sample], *, share: bool, dtype: torch.dtype, device: torch.device) -> Packing:
    """Pack `samples`. dtype: of the masks, in which attention is computed."""
    laid = _lay_out(samples, share)
    order = [laid.rows[n] for group in laid.groups for n in group]
    ids = np.concatenate([np.asarray(samples[r.sample].ids[r.start : r.stop], np.int64) for r in order])
    positions = np.concatenate([np.arange(r.start, r.stop) for r in order])
    layout = tuple(_bucket(laid, group, dtype, device) for group in laid.groups)
    source = _source(samples, laid)
    return Packing(
        ids=torch.from_numpy(ids)[None].to(device),
        positions=torch.from_numpy(positions)[None].to(device),
        buckets=layout,
        source=torch.from_numpy(source).to(device),
        padded=sum(b.rows * b.width for b in layout),
        repeats=_repeats(samples, source, device) if share and any(s.tree for s in samples) else None,
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """A layout. rows: of `rows_of`; own: the last row of each sample. groups: rows of each bucket. starts: place of
    each row among all tokens."""

    rows: list[Row]
    own: list[int]
    groups: list[list[int]]
    starts: np.ndarray


def _lay_out(samples: Sequence[Sample], share: bool) -> _Layout:
    rows, own = rows_of(samples, share=share)
    groups = buckets([Size(row.stop - row.start, row.start) for row in rows], max_mask=MASK)
    starts, at = np.zeros(len(rows), np.int64), 0
    for group in groups:
        for n in group:
            starts[n] = at
            at += rows[n].stop - rows[n].start
    return _Layout(rows, own, groups, starts)


def _source(samples: Sequence[Sample], laid: _Layout) -> np.ndarray:
    found = []
    for sample, own in zip(samples, laid.own, strict=True):
        before = np.flatnonzero(np.asarray(sample.scored)) - 1
        source = np.empty_like(before)
        for n in chain(laid.rows, own):
            row = laid.rows[n]
            here = (before >= row.start) & (before < row.stop)
            source[here] = laid.starts[n] + before[here] - row.start
        found.append(source)
    return np.concatenate(found)


def _repeats(samples: Sequence[Sample], source: np.ndarray, device: torch.device) -> SharedPrefixes | None:
    targets = np.concatenate([np.asarray(s.ids)[np.flatnonzero(np.asarray(s.scored))] for s in samples])
    _, first, of = np.unique(np.stack([source, targets]), axis=1, return_index=True, return_inverse=True)
    if len(first) == len(source):
        return None
    return SharedPrefixes(torch.from_numpy(first).to(device), torch.from_numpy(of.reshape(-1)).to(device))


def _bucket(laid: _Layout, group: list[int], dtype: torch.dtype, device: torch.device) -> Bucket:
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


def _prefix(laid: _Layout, rows: list[Row], width: int, dtype: torch.dtype, device: torch.device) -> Prefix:
    which, of = np.unique([row.above for row in rows], return_inverse=True)
    chains = [chain(laid.rows, n) for n in which]
    seen = [np.concatenate([np.arange(r.stop - r.start) + at for r, at in _placed(laid, rows)]) for rows in chains]
    offset = np.arange(max(map(len, seen)))
    index = np.stack([tokens[np.minimum(offset, len(tokens) - 1)] for tokens in seen])
    kept = np.flatnonzero(offset < np.array([len(tokens) for tokens in seen])[:, None])
    mask = _mask(np.array([row.start for row in rows]), width, dtype, device)
    above = [n for rows in chains for n in rows]
    return Prefix(
        index=torch.from_numpy(index.reshape(-1)).to(device),
        kept=None if len(kept) == index.size else torch.from_numpy(kept).to(device),
        distinct=len(set(above)) == len(above),
        count=len(which),
        rows=torch.from_numpy(of.reshape(-1)).to(device),
        mask=mask,
    )


def _placed(laid: _Layout, rows: Sequence[int]) -> Iterator[tuple[Row, int]]:
    """Yield rows, and their places among all tokens."""
    return ((laid.rows[n], int(laid.starts[n])) for n in rows)


def _padded(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, width) indices of rows at `starts`, padding repeating their last; and, counted through all rows,
    those without padding."""
    offset = np.arange(lengths.max())
    index = starts[:, None] + np.minimum(offset, lengths[:, None] - 1)
    return index, np.flatnonzero(offset < lengths[:, None])


def _mask(before: np.ndarray, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a mask: -inf beyond a row's prefix of `before` ids, and ahead of itself. One for all rows whose prefixes
    have one length."""
    prompt = torch.from_numpy(before if len(set(before)) > 1 else before[:1]).to(device)
    past_prompt = (torch.arange(int(before.max()), device=device) >= prompt[:, None])[:, None].expand(-1, width, -1)
    ahead = torch.ones(width, width, dtype=torch.bool, device=device).triu(1).expand(len(prompt), -1, -1)
    blocked = torch.cat([past_prompt, ahead], -1)
    return torch.zeros(blocked.shape, dtype=dtype, device=device).masked_fill_(blocked, -torch.inf)[:, None]
