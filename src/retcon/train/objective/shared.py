"""What rollouts of a tree have in common: ARPO's hard advantage (arXiv 2507.19849), the mean of theirs, and what is to
be learnt of it but once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from retcon.core.types import Sample, Trajectory, Turn


def averaged_where_shared(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of a group, each token's advantage the mean over the samples of its tree that are alike up to and
    including it; a tree's rollouts are those with one `tree`, and "" is none. A token that two of them happen to have
    sampled anew counts as well: it is the same action after the same history.

    Raises ValueError for a sample without advantages.
    """
    trees: dict[str, list[int]] = defaultdict(list)
    for number, sample in enumerate(samples):
        if sample.tree:
            trees[sample.tree].append(number)
    found = list(samples)
    for members in trees.values():
        told = _averaged([samples[number] for number in members])
        for number, advantages in zip(members, told, strict=True):
            found[number] = replace(samples[number], advantages=advantages)
    return found


def _averaged(samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Of each sample of a tree its tokens' advantages, averaged where they are shared."""
    own: list[list[float]] = []
    for sample in samples:
        if sample.advantages is None:
            raise ValueError(f"trajectory {sample.source}: its sample has no advantages that could be averaged")
        own.append(list(sample.advantages))
    together = [list(range(len(samples)))]  # the samples that are alike so far, one list each way there is
    place = 0
    while together:
        apart: list[list[int]] = []
        for alike in together:
            ways: dict[int, list[int]] = defaultdict(list)
            for number in alike:
                if place < len(samples[number].ids):
                    ways[samples[number].ids[place]].append(number)
            apart += [way for way in ways.values() if len(way) > 1]
        for way in apart:
            mean = sum(own[number][place] for number in way) / len(way)
            for number in way:
                own[number][place] = mean
        together, place = apart, place + 1
    return [tuple(one) for one in own]


def first_to_tell(rollouts: Sequence[Trajectory]) -> list[Trajectory]:
    """The rollouts, each branch with no more shared turns than it has in common with one of its tree that comes before
    it: of what was sampled once the first of them tells, be the one that it was sampled for not among them."""
    return [
        one if one.branch is None else replace(one, branch=replace(one.branch, turns=_told(one, rollouts[:number])))
        for number, one in enumerate(rollouts)
    ]


def _told(branch: Trajectory, before: Sequence[Trajectory]) -> int:
    """How many of the turns that a branch shares another one of its tree has, too."""
    shared = branch.turns[: branch.shared_turns]
    return max((_alike(shared, other.turns) for other in before if _root(other) == _root(branch)), default=0)


def _alike(first: Sequence[Turn], second: Sequence[Turn]) -> int:
    return sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(first, second, strict=False)))


def _root(rollout: Trajectory) -> str:
    return rollout.id if rollout.branch is None else rollout.branch.root
