"""Weights of tokens by how unsure the policy was of them: AEPO's entropy-aware advantage (arXiv 2510.14545)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import torch
from cydifflib import SequenceMatcher

from retcon.core.types import TRAINED, Sample, Trajectory, Turn, ids_of, token_count
from retcon.purify.pairs import call_mask
from retcon.train.kernels.computing import Computing
from retcon.train.kernels.forward import forwards

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def standardised(entropies: Sequence[float], weight: float) -> list[float]:
    """1 + a (H_t - mean H) / std H of each token, never below 0; 1 for all where they do not differ. weight: a.

    A weight of the loss's term: the surrogate is as many times as large as a positive factor of the advantage.
    """
    spread = stdev(entropies) if len(entropies) > 1 else 0.0
    if not spread:
        return [1.0] * len(entropies)
    mean = fmean(entropies)
    return [max(0.0, 1 + weight * (entropy - mean) / spread) for entropy in entropies]


@torch.no_grad()
def weighed_by_entropy(
    model: PreTrainedModel, samples: Sequence[Sample], computing: Computing, weight: float
) -> list[Sample]:
    """`samples` with these weights, which multiply those that they have; the entropies are those of `model` before each
    token in the loss masks of all samples that have an advantage. The others stay as they are."""
    model.eval()
    learnt = [s for s in samples if any(s.advantages or ()) and any(s.mask)]
    if not learnt:
        return list(samples)
    found: dict[int, list[float]] = {}
    with forwards(model, learnt, computing, entropies=True) as parts:
        for part in parts:
            assert part.entropies is not None
            for sample, row in zip(part.samples, part.entropies.tolist(), strict=True):
                found[id(sample)] = [e for e, m in zip(row, sample.mask, strict=False) if m]
    weights = iter(standardised([e for s in learnt for e in found[id(s)]], weight))
    own = {id(s): replace(s, weights=_times(s, [next(weights) for _ in found[id(s)]])) for s in learnt}
    return [own.get(id(sample), sample) for sample in samples]


def _times(sample: Sample, factors: Sequence[float]) -> tuple[float | None, ...]:
    """The sample's weights, each masked-in token's times its factor. factors: of those tokens alone."""
    left = iter(factors)
    had = sample.weights or (None,) * len(sample.ids)
    return tuple(next(left) * (1.0 if w is None else w) if m else w for w, m in zip(had, sample.mask, strict=True))


# Blame: in a rollout that was right, what was wrong in the calls that failed is learnt against, and no more. Ours.
#
# A rollout that fails a call, corrects itself and ends right has an advantage above 0, and with it the failed call is
# learnt as well as the correction. The correction says what was wrong: where the two calls' tokens differ. On-policy,
# without a lookahead; whatever the two have in common, mostly the method, keeps the rollout's advantage.

MOST_ALIGNED = 4000
"""Tokens of a call; of longer ones, which take long to align, all is to blame from where the two part."""


def credited(trajectory: Trajectory, length: int, advantage: float, blame: float) -> tuple[float, ...]:
    """The advantage of each token, (length,): the rollout's, and where that is positive -blame times it on what is
    blamed (see `blamed`)."""
    if not blame or advantage <= 0:
        return (advantage,) * length
    return tuple(-blame * advantage if wrong else advantage for wrong in blamed(trajectory))


def blamed(trajectory: Trajectory) -> list[bool]:
    """Of each token, (T,), whether it is to blame for a failed call: one that the model wrote in such a turn, from its
    first call on, and that the next turn whose calls all succeed has otherwise. Where that turn only adds something,
    the token that stands in its place. Without such a turn all of the call is to blame. Of a call that was described
    nothing is left to blame."""
    found = [False] * token_count(trajectory.prompt)
    for number, turn in enumerate(trajectory.turns):
        described = turn.repair is not None and turn.repair.decision == "described"
        there = turn.failures > 0 and not described
        wrong = iter(_wrong(turn, trajectory.turns[number + 1 :]) if there else ())
        for segment in turn.segments:
            found += [segment.kind in TRAINED and next(wrong, False) for _ in segment.ids or ()]
    return found


def _wrong(turn: Turn, later: Sequence[Turn]) -> list[bool]:
    """Of each token that the model wrote in a failed turn, whether it is to blame."""
    before, call = _parts(turn)
    correction = next((one for one in later if one.calls and not one.failures), None)
    if correction is None:
        return [False] * len(before) + [True] * len(call)
    right = _parts(correction)[1]
    # Where the two part is exact; further on difflib aligns them.
    alike = next((n for n, (a, b) in enumerate(zip(call, right, strict=False)) if a != b), min(len(call), len(right)))
    if max(len(call), len(right)) - alike > MOST_ALIGNED:
        return [False] * (len(before) + alike) + [True] * (len(call) - alike)
    wrong = [False] * len(call)
    matcher = SequenceMatcher(None, call[alike:], right[alike:], autojunk=False)
    for operation, first, last, _, _ in matcher.get_opcodes():
        if operation != "equal":
            for n in range(alike + first, min(alike + max(last, first + 1), len(call))):
                wrong[n] = True
    return [False] * len(before) + wrong


def _parts(turn: Turn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the model wrote before its first call, and from there on; where that call does not begin on a token
    boundary all of them are the call's."""
    ids = ids_of(turn.generated)
    start = (call_mask(turn) or (1,)).index(1)
    return ids[:start], ids[start:]


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
