"""Failed calls to replay: each with the history before it, what SAAR put in its place, and the credit that both got."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from retcon.core.seeds import derive
from retcon.core.types import REPLACED, Trajectory, Turn
from retcon.purify.failing import FAILURES, has_failed

Groups = Sequence[Sequence[Trajectory]]
Credit = Callable[[Groups], list[list[float]]]
"""The advantages of the rollouts of a step's groups, all of them graded."""


@dataclass(frozen=True, slots=True)
class FailedCall:
    """The first failed turn of a rollout, as a state to go on from.

    raw: the rollout without a repair, `number` its turn that failed, 0-based; advantage: the rollout's in its group.
    fix: what the same rollout with SAAR has in the place of that turn, None where nothing worked; fix_advantage: that
    rollout's in its own group, None likewise.
    """

    raw: Trajectory
    number: int
    advantage: float
    fix: Turn | None = None
    fix_advantage: float | None = None

    @property
    def id(self) -> str:
        return self.raw.id

    @property
    def before(self) -> tuple[Turn, ...]:
        """The turns of the clean history."""
        return self.raw.turns[: self.number]

    @property
    def failure(self) -> Turn:
        return self.raw.turns[self.number]


def failed_calls(raw: Groups, purified: Groups, credit: Credit, *, max_turns: int) -> list[FailedCall]:
    """The failed calls of rollouts that were made twice, from the same seeds: raw, and with every one purified.

    Up to its first failure a rollout is the same in both. A failure in the last of `max_turns` is left out: nothing
    follows it, whatever is done. Rollouts that a fault ended are in no group.
    """
    fixes = {trajectory.id: (trajectory, value) for trajectory, value in _credited(purified, credit)}
    found = []
    for trajectory, advantage in _credited(raw, credit):
        number = next((n for n, turn in enumerate(trajectory.turns) if has_failed(turn, FAILURES)), None)
        if number is None or number + 1 >= max_turns:
            continue
        fixed, value = fixes.get(trajectory.id, (None, None))
        turn = fixed.turns[number] if fixed is not None and len(fixed.turns) > number else None
        if turn is not None and _replaces(turn, trajectory.turns[number]):
            found.append(FailedCall(trajectory, number, advantage, turn, value))
        else:
            found.append(FailedCall(trajectory, number, advantage))
    return found


def drawn(calls: Sequence[FailedCall], count: int, *, seed: int) -> list[FailedCall]:
    """`count` of them, or all where there are no more; which, depends on the seed and their ids alone."""
    return sorted(calls, key=lambda call: derive("audit", seed, call.id))[:count]


def _replaces(turn: Turn, failure: Turn) -> bool:
    """Whether a turn stands in the place of this very failure."""
    replaced = turn.repair is not None and turn.repair.decision in REPLACED
    return replaced and turn.abandoned[0].segments == failure.segments


def _credited(groups: Groups, credit: Credit) -> Iterator[tuple[Trajectory, float]]:
    graded = [[t for t in group if t.reward is not None] for group in groups]
    for group, advantages in zip(graded, credit(graded), strict=True):
        yield from zip(group, advantages, strict=True)
