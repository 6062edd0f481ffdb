"""Credit of tokens: AEPO's entropy weights (arXiv 2510.14545), blame, shared prefixes,
and RTMC (arXiv 2604.11037): a step's advantage, from the rollouts of its group that were in the same state."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import fmean, stdev
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

import torch
from cydifflib import SequenceMatcher

from retcon.core.types import TRAINED, Sample, ToolCall, Trajectory, Turn, ids_of, token_count
from retcon.models.devices import Computing
from retcon.purify.pairs import call_mask
from retcon.train.kernels.forward import forwards

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def entropy_weights(entropies: Sequence[float], weight: float) -> list[float]:
    """Return weights by standardised entropies.

    1 + a (H_t - mean H) / std H, at least 0; 1 for equal entropies. weight: a. They multiply the loss's terms: the
    surrogate scales with a positive factor of the advantage.
    """
    spread = stdev(entropies) if len(entropies) > 1 else 0.0
    if not spread:
        return [1.0] * len(entropies)
    mean = fmean(entropies)
    return [max(0.0, 1 + weight * (entropy - mean) / spread) for entropy in entropies]


@torch.no_grad()
def weigh_by_entropy(
    model: PreTrainedModel, samples: Sequence[Sample], computing: Computing, weight: float
) -> list[Sample]:
    """Multiply the samples' weights by those of their entropies under `model`. These are before each token in the loss
    masks of all samples that have an advantage; the others are unchanged."""
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
    weights = iter(entropy_weights([e for s in learnt for e in found[id(s)]], weight))
    own = {id(s): replace(s, weights=_multiply_weights(s, [next(weights) for _ in found[id(s)]])) for s in learnt}
    return [own.get(id(sample), sample) for sample in samples]


def _multiply_weights(sample: Sample, factors: Sequence[float]) -> tuple[float | None, ...]:
    """Multiply the weights of a sample's tokens in the loss mask. factors: of those tokens alone."""
    left = iter(factors)
    had = sample.weights or (None,) * len(sample.ids)
    return tuple(next(left) * (1.0 if w is None else w) if m else w for w, m in zip(had, sample.mask, strict=True))


# Blame (ours): in a right rollout, the wrong tokens of failed calls get a negative advantage.
#
# A rollout that fails a call, corrects itself and ends right has an advantage above 0, and with it the failed call is
# learnt as well as the correction. The correction shows the wrong tokens: where the two calls differ. On-policy,
# without a lookahead; the common part, mostly the method, keeps the rollout's advantage.

MOST_ALIGNED = 4000
"""Most tokens of a call to align; of longer ones, all after the common prefix is to blame."""


def token_advantages(trajectory: Trajectory, length: int, advantage: float, blame: float) -> tuple[float, ...]:
    """Return each token's advantage, (length,): the rollout's, and if that is positive -blame times it on blamed tokens
    (see `find_blame`)."""
    if not blame or advantage <= 0:
        return (advantage,) * length
    return tuple(-blame * advantage if wrong else advantage for wrong in find_blame(trajectory))


def find_blame(trajectory: Trajectory) -> list[bool]:
    """Mark the tokens to blame for failed calls, (T,).

    These are the model's tokens from a failed turn's first call on that differ in the next turn whose calls all
    succeed; for an insertion, the token in its place; without such a turn, the whole call. A described call has
    none."""
    found = [False] * token_count(trajectory.prompt)
    for number, turn in enumerate(trajectory.turns):
        described = turn.repair is not None and turn.repair.decision == "described"
        there = turn.failures > 0 and not described
        wrong = iter(_wrong(turn, trajectory.turns[number + 1 :]) if there else ())
        for segment in turn.segments:
            found += [segment.kind in TRAINED and next(wrong, False) for _ in segment.ids or ()]
    return found


def _wrong(turn: Turn, later: Sequence[Turn]) -> list[bool]:
    """Mark the tokens to blame among the model's in a failed turn."""
    before, call = _parts(turn)
    correction = next((one for one in later if one.calls and not one.failures), None)
    if correction is None:
        return [False] * len(before) + [True] * len(call)
    right = _parts(correction)[1]
    # The common prefix is exact; after it difflib aligns them.
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
    """Split the model's ids at its first call; if that does not begin on a token boundary, all are the call's."""
    ids = ids_of(turn.generated)
    start = (call_mask(turn) or (1,)).index(1)
    return ids[:start], ids[start:]


def average_shared(samples: Sequence[Sample]) -> list[Sample]:
    """Average the advantages of tokens over equal prefixes of a tree.

    A token gets the mean over the samples of its `tree` ("": no tree) that are equal up to and including it. A token
    that two of them sampled independently counts as well: it is one action after one history.

    Raises ValueError for a sample without advantages.
    """
    trees: dict[str, list[int]] = defaultdict(list)
    for number, sample in enumerate(samples):
        if sample.tree:
            trees[sample.tree].append(number)
    found = list(samples)
    for members in trees.values():
        means = _average([samples[number] for number in members])
        for number, advantages in zip(members, means, strict=True):
            found[number] = replace(samples[number], advantages=advantages)
    return found


def _average(samples: Sequence[Sample]) -> list[tuple[float, ...]]:
    """Return the advantages of a tree's samples, averaged over shared prefixes."""
    own: list[list[float]] = []
    for sample in samples:
        if sample.advantages is None:
            raise ValueError(f"trajectory {sample.source}: its sample has no advantages that could be averaged")
        own.append(list(sample.advantages))
    together = [list(range(len(samples)))]  # groups of samples that are equal so far
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


def own_first_shared(rollouts: Sequence[Trajectory]) -> list[Trajectory]:
    """Limit branches' shared turns to those of earlier rollouts.

    So the first rollout with a shared turn owns it, also if the rollout that sampled it is missing."""
    return [
        one if one.branch is None else replace(one, branch=replace(one.branch, turns=_shared(one, rollouts[:number])))
        for number, one in enumerate(rollouts)
    ]


def _shared(branch: Trajectory, before: Sequence[Trajectory]) -> int:
    """Count the branch's shared turns that an earlier rollout of its tree has, too."""
    shared = branch.turns[: branch.shared_turns]
    return max((_alike(shared, other.turns) for other in before if _root(other) == _root(branch)), default=0)


def _alike(first: Sequence[Turn], second: Sequence[Turn]) -> int:
    return sum(1 for _ in takewhile(lambda two: two[0] == two[1], zip(first, second, strict=False)))


def _root(rollout: Trajectory) -> str:
    return rollout.id if rollout.branch is None else rollout.branch.root


def step_advantages(group: Sequence[Trajectory], advantages: Sequence[float]) -> list[list[float]]:
    """Return the advantage of every turn of a group, (G, turns).

    Q̂(s, a) is the mean R of the rollouts that took action a in state s, V̂(s) that of all that were in s, and
    Â(s, a) = Q̂(s, a) − V̂(s). R is the rollout's advantage in its group: rewards come at the end (γ = 1), and Â keeps
    the algorithm's scale. The paper compresses histories of a software repository into signatures; here a state is
    what the calls so far answered, an action the syntax trees of the turn's programs. In a state that no other rollout
    was in, Q̂ − V̂ is always 0; there the turn keeps R, which is ours.
    """
    returns: dict[Hashable, list[float]] = defaultdict(list)
    actions: dict[Hashable, list[float]] = defaultdict(list)
    for trajectory, advantage in zip(group, advantages, strict=True):
        for state, action in _steps(trajectory):
            returns[state].append(advantage)
            actions[state, action].append(advantage)
    return [
        [
            fmean(actions[state, action]) - fmean(returns[state]) if len(returns[state]) > 1 else advantage
            for state, action in _steps(trajectory)
        ]
        for trajectory, advantage in zip(group, advantages, strict=True)
    ]


def count_shared_states(group: Sequence[Trajectory]) -> int:
    """Count turns after a call whose state another rollout shares."""
    states = [state for trajectory in group for state, _ in _steps(trajectory)[1:]]
    return sum(states.count(state) > 1 for state in states)


def spread_over_tokens(trajectory: Trajectory, turns: Sequence[float]) -> tuple[float, ...]:
    """Return the advantage of each token, (T,): that of its turn on what the model wrote, else 0."""
    found = [0.0] * token_count(trajectory.prompt)
    for turn, advantage in zip(trajectory.turns, turns, strict=True):
        for segment in turn.segments:
            found += [advantage if segment.kind in TRAINED else 0.0] * len(segment.ids or ())
    return tuple(found)


def _steps(trajectory: Trajectory) -> list[tuple[tuple[Hashable, ...], Hashable]]:
    """The state before each turn, and the action that the turn is."""
    state: tuple[Hashable, ...] = ("".join(segment.text for segment in trajectory.prompt),)
    found = []
    for turn in trajectory.turns:
        found.append((state, _action(turn, trajectory.answer)))
        state = (*state, *((one.status, one.error_type or one.text.strip()) for one in turn.observations))
    return found


def _action(turn: Turn, answer: str | None) -> Hashable:
    return tuple((call.name, _program(call)) for call in turn.calls) or (turn.text if answer is None else answer)


def _program(call: ToolCall) -> str:
    try:
        with catch_warnings():
            simplefilter("ignore")  # of a program's own text, such as an invalid escape
            return ast.unparse(ast.parse(call.code))
    except (SyntaxError, ValueError, RecursionError):
        return call.code.strip()
