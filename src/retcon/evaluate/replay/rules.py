"""Which way each credit rule pushes at a failed call, and which way would have been right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from retcon.core.types import Trajectory
from retcon.evaluate.replay.replays import WAYS, Way
from retcon.evaluate.replay.states import FailedCall
from retcon.evaluate.statistics import CONFIDENCE, RESAMPLES, Interval


class Count(msgspec.Struct, frozen=True):
    """Replays that came to their end, and those of them that passed."""

    made: int
    passed: int

    @property
    def share(self) -> float | None:
        return self.passed / self.made if self.made else None


class Replayed(msgspec.Struct, frozen=True):
    """A failed call and what came of its replays. fixed: None where nothing was put in its place. worked, failed: of
    the fresh replays, those whose first call succeeded, and those whose did not. lost: to faults. advantage,
    fix_advantage: see `FailedCall`."""

    id: str
    task: str
    turn: int
    fresh: Count
    raw: Count
    fixed: Count | None
    worked: Count
    failed: Count
    advantage: float
    fix_advantage: float | None
    lost: int

    @property
    def of_failure(self) -> float | None:
        """By how much likelier the rollout passes after the failed call than from the history before it."""
        return _difference(self.raw, self.fresh)

    @property
    def of_fix(self) -> float | None:
        """The same of what SAAR put in its place."""
        return _difference(self.fixed, self.fresh)

    @property
    def of_working(self) -> float | None:
        """By how much likelier it passes where a fresh try's call succeeds than where it fails."""
        return _difference(self.worked, self.failed)


def counted(call: FailedCall, replays: Sequence[Trajectory]) -> Replayed:
    """The replays of a failed call, counted. A fresh try without a call is neither one that worked nor one that
    failed."""
    graded = [t for t in replays if t.reward is not None]
    ways: dict[Way, list[Trajectory]] = {way: [t for t in graded if t.id.split("/")[-2] == way] for way in WAYS}
    first = [(t, t.turns[call.number]) for t in ways["fresh"] if len(t.turns) > call.number]
    return Replayed(
        call.id,
        call.raw.task,
        call.number,
        _count(ways["fresh"]),
        _count(ways["raw"]),
        None if call.fix is None else _count(ways["fixed"]),
        _count([t for t, turn in first if turn.observations and not turn.failures]),
        _count([t for t, turn in first if turn.failures]),
        call.advantage,
        call.fix_advantage,
        len(replays) - len(graded),
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """name: of a rule of credit. on: the tokens that it is about. push: their sign, None where there are none of them.
    effect: what those tokens did to the chance to pass, None where it is not known."""

    name: str
    on: str
    push: Callable[[Replayed], float | None]
    effect: Callable[[Replayed], float | None]


def _of_fix(push: Callable[[float], float]) -> Callable[[Replayed], float | None]:
    return lambda one: None if one.fix_advantage is None else push(one.fix_advantage)


FAILED, SPLICED, TRIED = "the failed call", "what replaced it", "fresh tries"
RULES = (
    Rule("rollout's advantage (baseline)", FAILED, lambda one: one.advantage, lambda one: one.of_failure),
    Rule("masked", FAILED, lambda _: 0.0, lambda one: one.of_failure),
    Rule("contrast", FAILED, lambda _: -1.0, lambda one: one.of_failure),
    Rule("blame", FAILED, lambda one: -abs(one.advantage), lambda one: one.of_failure),
    Rule("rollout's advantage (SAAR)", SPLICED, _of_fix(lambda value: value), lambda one: one.of_fix),
    Rule("veto, imitate", SPLICED, _of_fix(lambda value: max(value, 0.0)), lambda one: one.of_fix),
    Rule("contrast", SPLICED, _of_fix(lambda _: 1.0), lambda one: one.of_fix),
    Rule("local group (branch)", TRIED, lambda _: 1.0, lambda one: one.of_working),
)


class Verdict(msgspec.Struct, frozen=True):
    """What a rule was worth. states: those whose tokens made a difference in the replays, in one direction or the
    other; even: those where they made none. right, wrong, silent: of `states`, by the rule's sign. share: right of
    those to which it gave a sign. gain: the mean, over all states, of its sign times the difference: what the chance
    to pass gains in the direction that it pushes."""

    rule: str
    on: str
    states: int
    even: int
    right: int
    wrong: int
    silent: int
    share: Interval | None
    gain: Interval | None


def verdict(rule: Rule, replayed: Sequence[Replayed], *, seed: int = 0) -> Verdict:
    """Intervals are of a bootstrap over tasks: rollouts of one task are not independent."""
    judged = [
        (one.task, _sign(push), effect)
        for one in replayed
        if (push := rule.push(one)) is not None and (effect := rule.effect(one)) is not None
    ]
    decided = [(task, sign * _sign(effect)) for task, sign, effect in judged if effect]
    given = [(task, float(agrees > 0)) for task, agrees in decided if agrees]
    return Verdict(
        rule.name,
        rule.on,
        len(decided),
        len(judged) - len(decided),
        sum(agrees > 0 for _, agrees in decided),
        sum(agrees < 0 for _, agrees in decided),
        sum(agrees == 0 for _, agrees in decided),
        over_tasks(given, seed=seed),
        over_tasks([(task, sign * effect) for task, sign, effect in judged], seed=seed),
    )


def chances(replayed: Sequence[Replayed], *, seed: int = 0) -> dict[str, Interval | None]:
    """The chance to pass of each counterfactual, over the states that have all three of them, and the differences."""
    whole = [one for one in replayed if one.of_failure is not None and one.of_fix is not None]
    ways: dict[str, Callable[[Replayed], float | None]] = {
        "fresh": lambda one: one.fresh.share,
        "raw": lambda one: one.raw.share,
        "fixed": lambda one: one.fixed.share if one.fixed else None,
        "raw - fresh": lambda one: one.of_failure,
        "fixed - fresh": lambda one: one.of_fix,
    }
    return {
        name: over_tasks([(one.task, value) for one in whole if (value := of(one)) is not None], seed=seed)
        for name, of in ways.items()
    }


def over_tasks(values: Sequence[tuple[str, float]], *, seed: int = 0) -> Interval | None:
    """The mean of values, with a percentile bootstrap over the tasks that they are of (seeded); None of none."""
    if not values:
        return None
    tasks = sorted({task for task, _ in values})
    place = {task: n for n, task in enumerate(tasks)}
    sums, counts = np.zeros(len(tasks)), np.zeros(len(tasks))
    for task, value in values:
        sums[place[task]] += value
        counts[place[task]] += 1
    again = np.random.default_rng(seed).integers(len(tasks), size=(RESAMPLES, len(tasks)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(sums[again].sum(axis=1) / counts[again].sum(axis=1), [tail, 1 - tail])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def _sign(value: float) -> Literal[-1, 0, 1]:
    return 1 if value > 0 else -1 if value < 0 else 0


def _difference(one: Count | None, other: Count | None) -> float | None:
    ours, theirs = (None if count is None else count.share for count in (one, other))
    return None if ours is None or theirs is None else ours - theirs


def _count(replays: Sequence[Trajectory]) -> Count:
    return Count(len(replays), sum((t.reward or 0) > 0 for t in replays))
