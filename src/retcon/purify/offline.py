"""SAAR on trajectories that were lived without it: the failure and the fix both stand in the history already.

Live, the fix is generated for the failure; here it has to be recognised, and what is taken out has been seen by all
that follows. The decision between shallow and deep is the same (`splice.purify`); what may be taken for a fix is
stricter, as the paper (CLEANER, arXiv 2601.15141) says nothing about it. Whatever is in doubt is left alone, by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from retcon.core.types import Observation, RepairRecord, Segment, ToolCall, Trajectory, Turn
from retcon.purify.names import assertions, definitions, effects, goals, handlers, needs
from retcon.purify.noop import is_noop
from retcon.purify.saar import FAILURES
from retcon.purify.similarity import at_least
from retcon.purify.splice import program, purify

Reason = Literal[
    "end",
    "answered",
    "user",
    "unclear",
    "attempts",
    "unrelated",
    "sibling",
    "assertion",
    "swallowed",
    "state",
    "effects",
]
REASONS: dict[Reason, str] = {
    "end": "no later call works",
    "answered": "the model answers, or goes on without a call",
    "user": "a user speaks before a call works",
    "unclear": "the next call has no output, an unclear one, or was judged before",
    "attempts": "more attempts than K",
    "unrelated": "the next call that works does something else",
    "sibling": "a call beside it worked, and the fix does not repeat it",
    "assertion": "the fix no longer asserts what the failed call did",
    "swallowed": "the fix catches more exceptions instead",
    "state": "it left names that are used later and that the fix does not define",
    "effects": "it did something outside the session that the fix does not do again",
}


@dataclass(frozen=True, slots=True)
class Splice:
    """Turns `failure` to `fix` of the raw trajectory (both in it) became one. shallow: r_t is the failure's."""

    failure: int
    fix: int
    shallow: bool


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A failed turn of the raw trajectory that stays, and why. detail: what the reason is about, such as names."""

    turn: int
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Purified:
    """trajectory: with its raw turns in `abandoned`. splices, left: in the order of the raw turns."""

    trajectory: Trajectory
    splices: tuple[Splice, ...]
    left: tuple[LeftAlone, ...]


@dataclass(frozen=True, slots=True)
class Offline:
    """attempts: K; a run of failures that is longer stays whole. gamma: γ in [0, 1]. state: `check` whether what a
    failed call left behind is needed later, or `ignore` it, for tools that keep nothing between calls."""

    attempts: int = 3
    gamma: float = 0.5
    state: Literal["check", "ignore"] = "check"

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be 1 or more, not {self.attempts}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], not {self.gamma}")
        if self.state not in ("check", "ignore"):
            raise ValueError(f"state must be 'check' or 'ignore', not {self.state!r}")

    def __call__(self, trajectory: Trajectory) -> Purified:
        """The purified trajectory. A pure function; applied to its own result it changes nothing."""
        turns = list(trajectory.turns)
        splices: list[Splice] = []
        left: list[LeftAlone] = []
        # From the last run to the first, so that what follows a run is what will follow it in the result.
        for start in reversed(_run_starts(turns)):
            stop, reason = _run_end(turns, start)
            if reason is None and stop - start > self.attempts:
                reason = "attempts"
            first = stop
            for at in range(start, stop):
                if not failed(turns[at]):
                    continue
                objection = (reason, "") if reason else self._objection(turns, at, stop)
                if objection is None:
                    first = at
                    break
                left.append(LeftAlone(at, *objection))
                record = RepairRecord("unrepaired", 0, reason=_phrase(*objection))
                turns[at] = replace(turns[at], repair=record)
            if first < stop:
                fixed = purify(turns[first : stop + 1], self.gamma)
                splices.append(Splice(first, stop, fixed.repair is not None and fixed.repair.decision == "shallow"))
                # The places of the raw turns stay valid for the runs before: they only look behind `first`.
                turns[first : stop + 1] = [fixed]
        if splices:
            turns = _unscored_after(turns, min(s.failure for s in splices))
        changed = replace(trajectory, turns=tuple(turns)) if left or splices else trajectory
        return Purified(changed, tuple(reversed(splices)), tuple(sorted(left, key=lambda one: one.turn)))

    def _objection(self, turns: Sequence[Turn], at: int, stop: int) -> tuple[Reason, str] | None:
        """Why turn `stop` is no fix of turn `at`; None where it is one."""
        failure, fix = turns[at], turns[stop]
        if {c.name for c in failure.calls} != {c.name for c in fix.calls}:
            return "unrelated", "another tool"
        if not self._same_step(failure, fix):
            return "unrelated", ""
        for call, observation in zip(failure.calls, failure.observations, strict=True):
            if observation.status == "ok" and not any(self._alike(call, other) for other in fix.calls):
                return "sibling", call.id
        gone = frozenset().union(*map(_asserted, failure.calls)) - frozenset().union(*map(_asserted, fix.calls))
        if gone:
            return "assertion", min(gone)
        if sum(map(_handlers, fix.calls)) > sum(map(_handlers, failure.calls)):
            return "swallowed", ""
        return self._lost(turns, at, stop) if self.state == "check" else None

    def _same_step(self, failure: Turn, fix: Turn) -> bool:
        """Whether two turns try the same: alike by γ, or the fix binds a name that the failure was for.

        Of a program that failed on an import nothing ran, and a rewrite without it has another end: any name counts.
        """
        if at_least(program(failure.calls), program(fix.calls), self.gamma):
            return True
        bound = frozenset().union(*(definitions(c.code) for c in fix.calls if _is_program(c)))
        for call, observation in zip(failure.calls, failure.observations, strict=True):
            if not _is_program(call) or observation.status == "ok":
                continue
            wanted = goals(call.code, _line(observation))
            if observation.error_type in ("ImportError", "ModuleNotFoundError"):
                wanted = definitions(call.code)
            if wanted & bound:
                return True
        return False

    def _alike(self, call: ToolCall, other: ToolCall) -> bool:
        return call.name == other.name and at_least(program((call,)), program((other,)), self.gamma)

    def _lost(self, turns: Sequence[Turn], at: int, stop: int) -> tuple[Reason, str] | None:
        """What of the turns `at` to `stop` (without it) is needed in the end, and would be gone."""
        had = {pair for t in turns[:at] for c, o in _answered(t) if o == "ok" for pair in effects(c.code).imported}
        lost: set[str] = set()
        outside: set[str] = set()
        for turn in turns[at:stop]:
            for call, observation in zip(turn.calls, turn.observations, strict=True):
                if call.extra.get("language") == "shell":
                    return "effects", "a shell command"
                if not _is_program(call):
                    continue
                left = effects(call.code, _line(observation))
                # An import that stands earlier too gives the same name again.
                lost |= (left.defined - {name for name, text in left.imported if (name, text) in had}) | left.changed
                outside |= left.outside
        for call in turns[stop].calls:
            outside -= effects(call.code).outside
        if outside:
            return "effects", min(outside)
        for turn in turns[stop:]:
            for call, _ in _answered(turn):
                needed = needs(call.code, frozenset(lost))
                if needed:
                    return "state", ", ".join(sorted(needed))
                lost -= effects(call.code).defined
        return None


def failed(turn: Turn) -> bool:
    """Whether a turn failed, with an output for each of its calls; not one that was judged before."""
    statuses = {o.status for o in turn.observations}
    complete = bool(turn.calls) and len(turn.calls) == len(turn.observations)
    return complete and turn.repair is None and "infrastructure" not in statuses and not FAILURES.isdisjoint(statuses)


def _works(turn: Turn) -> bool:
    """Whether all calls of a turn succeeded, beyond doubt."""
    if not turn.calls or len(turn.calls) != len(turn.observations) or turn.repair is not None:
        return False
    return all(o.status == "ok" and "rule" not in o.extra for o in turn.observations)


def _does_nothing(turn: Turn) -> bool:
    return _works(turn) and all(map(is_noop, turn.calls))


def _spoken_after(turn: Turn) -> bool:
    """Whether a user spoke between this turn and the next."""
    return any(s.kind == "prompt" for s in turn.segments)


def _run_starts(turns: Sequence[Turn]) -> list[int]:
    """Where runs of failures begin: calls that do nothing, and failures, continue a run that no user interrupts."""
    starts: list[int] = []
    running = False
    for n, turn in enumerate(turns):
        if failed(turn):
            if not running:
                starts.append(n)
            running = True
        elif not (running and _does_nothing(turn)):
            running = False
        running = running and not _spoken_after(turn)
    return starts


def _run_end(turns: Sequence[Turn], start: int) -> tuple[int, Reason | None]:
    """Where the run from `start` ends, and why it has no fix; the turn there is the fix where it has one."""
    at = start
    while failed(turns[at]) or _does_nothing(turns[at]):
        at += 1
        if _spoken_after(turns[at - 1]):
            return at, "user"
        if at == len(turns):
            return at, "end"
    if _works(turns[at]):
        return at, None
    return at, "unclear" if turns[at].calls else "answered"


def _phrase(reason: Reason, detail: str) -> str:
    return f"{REASONS[reason]}: {detail}" if detail else REASONS[reason]


def _answered(turn: Turn) -> list[tuple[ToolCall, str]]:
    """The programs of a turn that were run, each with its status."""
    pairs = zip(turn.calls, turn.observations, strict=False)
    return [(c, o.status) for c, o in pairs if _is_program(c)]


def _is_program(call: ToolCall) -> bool:
    return not call.malformed and "code" in call.arguments and call.extra.get("language") != "shell"


def _line(observation: Observation) -> int | None:
    """Where the program failed, as far as its output says so; None: all of it may have run."""
    line = observation.extra.get("line")
    return line if observation.status != "ok" and isinstance(line, int) else None


def _asserted(call: ToolCall) -> frozenset[str]:
    return assertions(call.code)


def _handlers(call: ToolCall) -> int:
    return handlers(call.code)


def _unscored_after(turns: Sequence[Turn], first: int) -> list[Turn]:
    """After the first splice, log-probs were taken under another history: unknown, hence None."""
    later = [replace(t, segments=tuple(_unscored(s) for s in t.segments)) for t in turns[first + 1 :]]
    return [*turns[: first + 1], *later]


def _unscored(segment: Segment) -> Segment:
    return segment if segment.logprobs is None else replace(segment, logprobs=None)
