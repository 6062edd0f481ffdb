"""What samples of a micro-batch begin with alike, so that it is computed once: the prompt of a group, and, of rollouts
that branch, all that came before they parted, what is learnt of it as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

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
    return sample.mask.index(1) if 1 in sample.mask else 0


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
