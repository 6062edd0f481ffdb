"""Samples laid out one after another in a single row, without padding, what several of them begin with only once.

The linear layers of a model see (1, N) ids, none of them padding, at the positions they have in their samples. Only
attention needs to know who sees whom: it goes by rows (what samples begin with, what follows it in one of them, or a
whole sample), padded to their bucket's width.
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
"""Elements of an attention mask at most: samples whose mask would be larger do not share their beginning."""


@dataclass(frozen=True, slots=True)
class Row:
    """Ids start…stop of `sample`, which follow those of the row `above`, None for a row that begins at position 0. A
    row that others follow is one of several samples; `sample` is any of them."""

    sample: int
    start: int
    stop: int
    above: int | None


@dataclass(frozen=True, slots=True)
class Family:
    """Samples of a micro-batch, by index, that begin with the same `prompt` ids; 0 for a sample on its own."""

    members: tuple[int, ...]
    prompt: int


def prompt_length(sample: Sample) -> int:
    """Ids before the first that is learnt, which the rollouts of a group have in common; 0 where none is."""
    return sample.scored.index(1) if 1 in sample.scored else 0


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


def rows_of(samples: Sequence[Sample], *, share: bool) -> tuple[list[Row], list[int]]:
    """What is computed: first what several samples begin with, each row after those that it follows, then a row of its
    own for each sample; and which those are."""
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
            alike = [in_common(samples[one], samples[other]) for one, other in pairwise(members)]
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
    """The samples of each tree, in order of first appearance; within one those that have much in common together."""
    found: dict[object, list[int]] = {}
    for i in members:
        found.setdefault(samples[i].tree or i, []).append(i)
    return [tuple(sorted(tree, key=lambda i: samples[i].ids)) if len(tree) > 1 else (*tree,) for tree in found.values()]


def in_common(one: Sample, other: Sample) -> int:
    """Ids that both begin with, short of all of either: each keeps a row of its own."""
    length = min(len(one.ids), len(other.ids)) - 1
    unequal = np.fromiter(one.ids, np.int64, length) != np.fromiter(other.ids, np.int64, length)
    return int(unequal.argmax()) if unequal.any() else length


def chain(rows: Sequence[Row], row: int | None) -> list[int]:
    """The rows down to this one, this one last; none for None."""
    found = []
    while row is not None:
        found.append(row)
        row = rows[row].above
    return found[::-1]


PADDING = 0.15
"""Share of padding in a bucket of more than one row at most."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a row: its own ids, and those before them that it sees."""

    own: int
    prefix: int = 0


def buckets(sizes: Sequence[Size], *, max_tokens: int | None = None, max_mask: int | None = None) -> list[list[int]]:
    """Indices of `sizes` in buckets, the longest rows first; rows with and without a prefix do not mix.

    Where a bucket has more than one row, at most PADDING of its rows' ids is padding, and likewise of what they see,
    which is padded to the longest prefix and the longest row. max_tokens: padded, of a bucket; a longer row goes alone.
    max_mask: rows × tokens × what they see, where there are prefixes of several lengths.
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
    """What the B rows of a bucket see before themselves: F beginnings, padded on the right to P tokens.

    index: (F·P,) where each id is among all; kept: which of them are no padding, None where all
    are. distinct: whether no id is in two of them, as the prompt is of beginnings that part after it. count: F.
    rows: (B,) whose beginning each row has. mask: (B or 1, 1, T, P + T) to add to attention scores.
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
class Repeats:
    """Learnt ids, L in all, that are the same id after the same beginning in several samples. first: (U,), one of each;
    of: (L,), which of those each of all is."""

    first: Tensor
    of: Tensor


@dataclass(frozen=True, slots=True)
class Packing:
    """ids, positions: (1, N) int64. buckets: of attention, in the order of tokens. source: (L,) which id's hidden state
    predicts each of the learnt ids, sample after sample. repeats: see `Repeats`, None where none is learnt twice.
    padded: ids that attention computes, padding among them."""

    ids: Tensor
    positions: Tensor
    buckets: tuple[Bucket, ...]
    source: Tensor
    padded: int
    repeats: Repeats | None = None


def packed_batches(samples: Sequence[Sample], max_tokens: int, *, share: bool, copied: int = 0) -> list[list[Sample]]:
    """Micro-batches of at most `max_tokens` computed ids, families together, and within them trees; a longer sample
    goes alone. copied: so many ids that a sample begins with as another does count as one, since attention copies their
    keys and values; 0 where they count for nothing.

    A family that does not fit is cut, and each part computes its prompt.
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
                known = family.prompt if before is None else max(family.prompt, in_common(before, sample))
                own = len(sample.ids) - known + (known // copied if copied else 0)
                if cost and cost + own <= max_tokens:
                    cost += own
                    parts[-1][1].append(sample)
                    parts[-1] = (cost, parts[-1][1])
                else:
                    cost = len(sample.ids)
                    parts.append((cost, [sample]))
                before = sample
    # The longest first, so that the rows of a micro-batch are of like length.
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
    """The layout of `samples`. dtype: of the masks, that in which attention is computed."""
    laid = _lay(samples, share)
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
class _Laid:
    """rows: see `rows_of`; own: the one that each sample ends with. groups: who is in which bucket. starts: where each
    row is among all tokens."""

    rows: list[Row]
    own: list[int]
    groups: list[list[int]]
    starts: np.ndarray


def _lay(samples: Sequence[Sample], share: bool) -> _Laid:
    rows, own = rows_of(samples, share=share)
    groups = buckets([Size(row.stop - row.start, row.start) for row in rows], max_mask=MASK)
    starts, at = np.zeros(len(rows), np.int64), 0
    for group in groups:
        for n in group:
            starts[n] = at
            at += rows[n].stop - rows[n].start
    return _Laid(rows, own, groups, starts)


def _source(samples: Sequence[Sample], laid: _Laid) -> np.ndarray:
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


def _repeats(samples: Sequence[Sample], source: np.ndarray, device: torch.device) -> Repeats | None:
    targets = np.concatenate([np.asarray(s.ids)[np.flatnonzero(np.asarray(s.scored))] for s in samples])
    _, first, of = np.unique(np.stack([source, targets]), axis=1, return_index=True, return_inverse=True)
    if len(first) == len(source):
        return None
    return Repeats(torch.from_numpy(first).to(device), torch.from_numpy(of.reshape(-1)).to(device))


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


def _prefix(laid: _Laid, rows: list[Row], width: int, dtype: torch.dtype, device: torch.device) -> Prefix:
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


def _placed(laid: _Laid, rows: Sequence[int]) -> Iterator[tuple[Row, int]]:
    """Rows, and where they are among all tokens."""
    return ((laid.rows[n], int(laid.starts[n])) for n in rows)


def _padded(starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, width) indices of rows at `starts`, padding repeating their last; and, counted through all rows, which of
    them are no padding."""
    offset = np.arange(lengths.max())
    index = starts[:, None] + np.minimum(offset, lengths[:, None] - 1)
    return index, np.flatnonzero(offset < lengths[:, None])


def _mask(before: np.ndarray, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """-inf where a row must not look: behind the end of its beginning of `before` ids, and ahead of itself. One for all
    rows where their prompts are of one length."""
    prompt = torch.from_numpy(before if len(set(before)) > 1 else before[:1]).to(device)
    past_prompt = (torch.arange(int(before.max()), device=device) >= prompt[:, None])[:, None].expand(-1, width, -1)
    ahead = torch.ones(width, width, dtype=torch.bool, device=device).triu(1).expand(len(prompt), -1, -1)
    blocked = torch.cat([past_prompt, ahead], -1)
    return torch.zeros(blocked.shape, dtype=dtype, device=device).masked_fill_(blocked, -torch.inf)[:, None]
