"""Blame: in a rollout that was right, what was wrong in the calls that failed is learnt against, and no more. Ours.

A rollout that fails a call, corrects itself and ends right has an advantage above 0, and with it the failed call is
learnt as well as the correction. The correction says what was wrong: where the two calls' tokens differ. On-policy,
without a lookahead; whatever the two have in common, mostly the method, keeps the rollout's advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

from cydifflib import SequenceMatcher

from retcon.core.sample import ids_of, token_count
from retcon.core.types import TRAINED, Trajectory, Turn
from retcon.purify.pairs import call_mask

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
