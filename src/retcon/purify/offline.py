"""SAAR on finished trajectories, whose history has failure and fix.

Live, the fix is generated for the failure; here it has to be recognised, and what is taken out has been seen by all
that follows. The decision between shallow and deep is the same (`splice.purify`); what may be taken for a fix is
stricter, as the paper (CLEANER, arXiv 2601.15141) says nothing about it. Whatever is in doubt is left alone, by name.
"""

from __future__ import annotations

import builtins
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from retcon.core.types import Cut, Observation, RepairRecord, ToolCall, Trajectory, Turn
from retcon.purify.failing import (
    failed,
    has_program,
    is_lookup,
    is_program,
    lacks_outputs,
    run_end,
    run_starts,
    turn_does_nothing,
    user_follows,
    works,
)
from retcon.purify.fixes import find_change, find_evasion, find_lost_plan, keeps_plan, line_of, misses_goal, shares_goal
from retcon.purify.kept import Edit, Objection, References, apply_edits, prose
from retcon.purify.programs import assertions, bound_before, effects, handlers, needs, reads
from retcon.purify.similarity import at_least
from retcon.purify.splice import can_be_shallow, program, purify
from retcon.purify.words import find_references, says_something, takes_back

_GIVEN = frozenset({*dir(builtins), "display", "get_ipython", "In", "Out", "exit", "quit", "__file__"})
"""Names that a session has of its own."""


class SessionState:
    """State that the remaining turns need of a session."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self._needed: dict[str, bool] = {}
        """Whether later turns, except `_unread`, read a name before they bind it."""
        self._unread: list[Turn] = []
        """Later turns, from the last to the first, whose programs have not been looked at."""
        self._imported: dict[tuple[str, str], int] | None = None

    def fold(self, turn: Turn) -> None:
        """Take in that a turn stays."""
        self._unread.append(turn)

    def lost(self, at: int, stop: int) -> tuple[Reason, str] | None:
        """Find what turns `at` to `stop` leave behind and later turns need."""
        lost: set[str] = set()
        imported: set[tuple[str, str]] = set()
        outside: set[str] = set()
        for turn in self._turns[at:stop]:
            for call, observation in zip(turn.calls, turn.observations, strict=True):
                if call.language == "shell" and _may_have_acted(call, observation):
                    return "effects", "a shell command"
                if not is_program(call):
                    continue
                left = effects(call.code, line_of(observation))
                imported |= left.imported
                lost |= (left.defined - {name for name, _ in left.imported}) | left.changed
                outside |= left.outside
        for call in self._turns[stop].calls if outside else ():
            outside -= effects(call.code).outside
        if outside:
            return "effects", min(outside)
        needed = self._needed_of(stop, lost)
        # An import that stands earlier too gives the same names again.
        by_import = self._needed_of(stop, {name for name, _ in imported})
        if by_import or "*" in dict(imported):
            anew = {pair for pair in imported if self._imports().get(pair, at) >= at}
            needed |= by_import & {name for name, _ in anew}
            stars = {text for name, text in anew if name == "*"}
            if stars and not needed and (unknown := self._unknown(at, stop)):
                return "state", f"{min(unknown)}, of `{min(stars)}`"
        return ("state", ", ".join(sorted(needed))) if needed else None

    def _needed_of(self, stop: int, names: set[str]) -> set[str]:
        """Select names that turn `stop` or a later one reads before binding."""
        needed: set[str] = set()
        for call, _ in _answered(self._turns[stop]) if names else ():
            needed |= needs(call.code, frozenset(names))
            names = names - effects(call.code).defined
        if names:  # most often the fix binds all of them anew, and nothing that follows has to be parsed
            self._read()
        return needed | {name for name in names if self._needed.get(name)}

    def _read(self) -> None:
        for turn in self._unread:
            for call, observation in reversed(_answered(turn)):
                self._needed.update(dict.fromkeys(_surely_bound(call, observation), False))
                self._needed.update(dict.fromkeys(reads(call.code), True))
        self._unread.clear()

    def _unknown(self, at: int, stop: int) -> frozenset[str]:
        """Return the names that are read from turn `stop` on, and that nothing which stays binds."""
        self._read()
        read = frozenset(name for name, needed in self._needed.items() if needed)
        bound = {name for turn in self._turns[:at] for call, seen in _answered(turn) for name in _bound(call, seen)}
        for call, _ in reversed(_answered(self._turns[stop])):
            left = effects(call.code)
            read = frozenset() if "*" in dict(left.imported) else reads(call.code) | (read - left.defined)
        return read - bound - _GIVEN

    def _imports(self) -> dict[tuple[str, str], int]:
        """Map each import to the first call that made it and worked."""
        if self._imported is None:
            self._imported = {}
            for n, turn in enumerate(self._turns):
                for call, observation in _answered(turn):
                    if observation.status == "ok" and "import" in call.code:
                        for pair in effects(call.code).imported:
                            self._imported.setdefault(pair, n)
        return self._imported


def _may_have_acted(call: ToolCall, observation: Observation) -> bool:
    """Whether a shell's or editor's call may have changed something."""
    edits = not call.malformed and not has_program(call)
    return not (edits and (is_lookup(call) or observation.rule in ("editor", "error")))


def _answered(turn: Turn) -> list[tuple[ToolCall, Observation]]:
    """Return the programs of a turn that ran, each with its output."""
    return [(c, o) for c, o in zip(turn.calls, turn.observations, strict=False) if is_program(c)]


def _bound(call: ToolCall, observation: Observation) -> frozenset[str]:
    return effects(call.code, line_of(observation)).defined


def _surely_bound(call: ToolCall, observation: Observation) -> frozenset[str]:
    """Return the names that a program has surely bound."""
    if observation.status == "ok":
        return effects(call.code).defined
    line = line_of(observation)
    return frozenset() if line is None else bound_before(call.code, line)


Reason = str
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
    "constant": "nothing but constants is left of what the failed call computed",
    "unexecuted": "the fix defines, and runs nothing of it",
    "avoided": "the fix goes round what failed: a narrower range, a made-up value, a step that was done before",
    "doubted": "right after the fix the model takes it back",
    "plan": "the plan that its words tell was given up, and the fix's own cannot stand for them",
    "retry": "its words are about the failure before it, which stays, and the fix's own cannot stand for them",
    "words": "what stays would speak of what is taken out",
    "unsettled": "with a later failure repaired, purifying again would repair an earlier one of the run too",
    "unanswered": "a call beside it has no result",
}
UNFIT = "the failure's words are not about the fix"
"""Why a repair that would be shallow is deep."""


class Splice(Struct, frozen=True):
    """Splice of turns `failure` to `fix` of the raw trajectory.

    Args:
        shallow: whether r_t is the failure's."""

    failure: int
    fix: int
    shallow: bool


class UnrepairedFailure(Struct, frozen=True):
    """Failed turn that stays, and why. detail: what the reason is about, such as names."""

    turn: int
    reason: Reason
    detail: str = ""


class RepairResult(Struct, frozen=True):
    """Result of a repair. trajectory: with its raw turns in `abandoned`. splices, left, edits: in the order of the raw
    turns. cuts: the sentences and comments that edits leave out, with the rule of each."""

    trajectory: Trajectory
    splices: tuple[Splice, ...]
    left: tuple[UnrepairedFailure, ...]
    edits: tuple[Edit, ...] = ()
    cuts: tuple[Cut, ...] = ()


@dataclass(frozen=True, slots=True)
class Repairer:
    """Repair of whole trajectories. attempts: K; a longer run of failures stays whole. gamma: γ in [0, 1]. state:
    `check` whether a failed call's state is needed later, or `ignore` it, for tools that keep none between calls."""

    attempts: int = 3
    gamma: float = 0.5
    state: Literal["check", "ignore"] = "check"

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be 1 or more, not {self.attempts}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], not {self.gamma}")
        if self.state not in ("check", "ignore"):
            raise ValueError(f"state must be 'check' or 'ignore', not {self.state!r}")

    def __call__(self, trajectory: Trajectory) -> RepairResult:
        """Repair a trajectory. A pure function, and idempotent, also on a result that another format has kept: a run of
        failures where it would not be stays whole."""
        whole: frozenset[int] = frozenset()
        while True:
            made = self._purified(trajectory, whole)
            if not made.splices or not made.left:
                return made
            again = self(_as_kept(made.trajectory, trajectory)).splices
            if not (unsettled := _runs_of(again, made, trajectory.turns)):
                return made
            if unsettled <= whole:  # only text that other repairs removed stood against them: drop those, too
                starts = run_starts(trajectory.turns)
                unsettled = frozenset(starts[bisect_right(starts, one.failure) - 1] for one in made.splices)
            whole |= unsettled

    def _purified(self, trajectory: Trajectory, whole: Collection[int]) -> RepairResult:
        """Repair once, and leave the runs that begin at `whole` alone."""
        turns = trajectory.turns
        starts = run_starts(turns)
        left = [UnrepairedFailure(n, "unanswered") for n, turn in enumerate(turns) if lacks_outputs(turn)]
        if not starts and not left:
            return RepairResult(trajectory, (), ())
        after = _Suffix(turns, "\n".join(s.text for s in trajectory.prompt))
        splices: list[Splice] = []
        # From the last run to the first, so that what follows a run is what will follow it in the result.
        for start in reversed(starts):
            stop, ended = run_end(turns, start)
            reason: Reason | None = ended
            if reason is None and stop - start > self.attempts:
                reason = "attempts"
            if reason is None and start in whole:
                reason = "unsettled"
            objection: tuple[Reason, str] | None = (reason, "") if reason else None
            for at in range(start, stop):
                if not failed(turns[at]):
                    continue
                if reason is None:
                    objection = self._objection(after, at, stop)
                if objection is None:
                    shallow, objection = self._made(after, at, stop)
                if objection is None:
                    splices.append(Splice(at, stop, shallow))
                    after.fold_splice(splices[-1])
                    break
                left.append(UnrepairedFailure(at, *objection))
                if objection[0] == "words":
                    reason = "words"  # whatever is tried later in the run, the same words would stay beside it
        splices.reverse()
        left.sort(key=lambda one: one.turn)
        result = self._put_together(turns, splices, left, after.kept)
        cuts = tuple(sorted(after.kept.cut))
        return RepairResult(replace(trajectory, turns=result), tuple(splices), tuple(left), after.kept.edits(), cuts)

    def _put_together(
        self, turns: Sequence[Turn], splices: Sequence[Splice], left: Sequence[UnrepairedFailure], kept: References
    ) -> tuple[Turn, ...]:
        edits = {edit.turn: edit for edit in kept.edits()}
        of_splice = {splice.failure: splice for splice in splices}
        phrases = {one.turn: f"{REASONS[one.reason]}{one.detail and f': {one.detail}'}" for one in left}
        out: list[Turn] = []
        number = 0
        while number < len(turns):
            turn, words, call = turns[number], number, number
            splice = of_splice.get(number)
            if splice is not None:
                attempts, call = turns[number : splice.fix + 1], splice.fix
                turn = purify(attempts, self.gamma, unfit="" if splice.shallow else UNFIT)
                words = number if splice.shallow else splice.fix
                if turn.repair is not None and (cuts := kept.cut_for(number)):
                    turn = replace(turn, repair=replace(turn.repair, cut=tuple(cuts)))
            elif number in phrases:
                turn = replace(turn, repair=RepairRecord("unrepaired", 0, reason=phrases[number]))
            if splices and number > splices[0].failure and any(s.logprobs is not None for s in turn.segments):
                segments = [
                    s if s.logprobs is None else replace(s, logprobs=None, versions=None) for s in turn.segments
                ]
                turn = replace(turn, segments=tuple(segments))
            if words in edits or call in edits:
                turn = apply_edits(turn, edits.get(words), edits.get(call))
            out.append(turn)
            number = call + 1
        return tuple(out)

    def _objection(self, after: _Suffix, at: int, stop: int) -> tuple[Reason, str] | None:
        """Find why turn `stop` is no fix of turn `at`."""
        failure, fix = after.turns[at], after.turns[stop]
        if {c.name for c in failure.calls} != {c.name for c in fix.calls}:
            return "unrelated", "another tool"
        if (name := find_change(failure, fix, self.gamma)) is not None:
            return "unrelated", name
        programs = any(c.malformed or has_program(c) for c in failure.calls)
        alike = not programs or at_least(program(failure.calls), program(fix.calls), self.gamma)
        if not alike and not shares_goal(failure, fix):
            return "unrelated", ""
        if (name := misses_goal(failure, fix)) is not None:
            return "unrelated", name
        for call, observation in zip(failure.calls, failure.observations, strict=True):
            if observation.status == "ok" and not any(self._alike(call, other) for other in fix.calls):
                return "sibling", call.id
        asserted = frozenset().union(*[assertions(c.code) for c in failure.calls])
        if asserted and (gone := asserted.difference(*[assertions(c.code) for c in fix.calls])):
            return "assertion", min(gone)
        if sum([handlers(c.code) for c in fix.calls]) > sum([handlers(c.code) for c in failure.calls]):
            return "swallowed", ""
        if (poor := find_evasion(failure, fix, lambda number: after.kept.known_before(number, at))) is not None:
            return poor
        if after.kept.done_before(stop, at):
            return "avoided", "it had been done before the failure"
        if self.state == "check" and (lost := after.lost(at, stop)) is not None:
            return lost
        if (doubt := _taken_back(after.turns, stop)) is not None:
            return "doubted", doubt
        return None

    def _made(self, after: _Suffix, at: int, stop: int) -> tuple[bool, tuple[Reason, str] | None]:
        """Decide whether a splice is shallow, and find why it is impossible.

        Without a reason every reference to the failure was cut. The fix keeps its own words, however alike the
        programs are, where the failure's words plan what was abandoned, belong to a failure that stays, or name
        what is removed."""
        failure, fix = after.turns[at], after.turns[stop]
        shallow = can_be_shallow(failure, fix) and at_least(program(failure.calls), program(fix.calls), self.gamma)
        unfit = _unfit(after, at, stop) if shallow else None
        if unfit is not None:
            own = (
                says_something(prose(fix))
                and keeps_plan(failure, fix)
                and after.objection(at, stop, shallow=False) is None
            )
            return False, None if own else unfit
        refused = after.objection(at, stop, shallow=shallow)
        return shallow, None if refused is None else ("words", f"{refused.rule}: {refused.text}")

    def _alike(self, call: ToolCall, other: ToolCall) -> bool:
        return call.name == other.name and at_least(program((call,)), program((other,)), self.gamma)


class _Suffix:
    """Turns that follow in the result, folded in backwards."""

    def __init__(self, turns: Sequence[Turn], prompt: str) -> None:
        self.turns = turns
        self.kept = References(turns, prompt)
        self._at = len(turns)
        self._session = SessionState(turns)

    def fold_splice(self, splice: Splice) -> None:
        """Take in a splice: its fix stays, with the words of its failure where it is shallow."""
        words = splice.failure if splice.shallow else splice.fix
        self._session.fold(self.turns[splice.fix])
        self.kept.fold(splice.fix, words, trouble=user_follows(self.turns[splice.fix]), stays=False)
        self._at = splice.failure

    def objection(self, at: int, stop: int, *, shallow: bool) -> Objection | None:
        self._back_to(stop)
        if user_follows(self.turns[stop]):
            self.kept.reset_references()
        return self.kept.objection(at, stop, shallow=shallow)

    def lost(self, at: int, stop: int) -> tuple[Reason, str] | None:
        """Find what turns `at` to `stop` leave behind and later turns need."""
        self._back_to(stop)
        return self._session.lost(at, stop)

    def _back_to(self, stop: int) -> None:
        """Take in all turns after `stop` that were not yet: they stay as they are."""
        while self._at > stop + 1:
            self._at -= 1
            turn = self.turns[self._at]
            self._session.fold(turn)
            trouble = user_follows(turn) or (bool(turn.calls) and not works(turn))
            self.kept.fold(self._at, self._at, trouble=trouble, stays=turn.failures > 0)


def _as_kept(result: Trajectory, raw: Trajectory) -> Trajectory:
    """Return a result as a format without repair records keeps it."""
    judged = {id(turn.repair) for turn in raw.turns}
    turns = (t if id(t.repair) in judged else replace(t, repair=None, abandoned=()) for t in result.turns)
    return replace(result, turns=tuple(turns))


def _runs_of(splices: Sequence[Splice], made: RepairResult, turns: Sequence[Turn]) -> frozenset[int]:
    """Find the starts of the raw runs of a result's splices."""
    starts, rest = run_starts(turns), list(reversed(made.splices))
    found: set[int] = set()
    removed = 0
    for splice in splices:
        while rest and rest[-1].failure < splice.failure + removed:
            one = rest.pop()
            removed += one.fix - one.failure
        found.add(starts[bisect_right(starts, splice.failure + removed) - 1])
    return frozenset(found)


def _unfit(after: _Suffix, at: int, stop: int) -> tuple[Reason, str] | None:
    """Find why a failure's words do not fit its fix."""
    turns = after.turns
    if (given_up := find_lost_plan(turns[at], turns[at + 1 : stop + 1])) is not None:
        return "plan", given_up
    if at and failed(turns[at - 1]) and not user_follows(turns[at - 1]):
        text = prose(turns[at])
        if one := next(iter(find_references(text, "fix", but="seen")), None):
            return "retry", text[one.start : one.end]
    name = after.kept.named_alone(at, stop)
    return None if name is None else ("words", f"name: {name}")


def _taken_back(turns: Sequence[Turn], fix: int) -> str | None:
    """Find words right after a fix that retract it."""
    at = fix
    while not user_follows(turns[at]) and at + 1 < len(turns):
        at += 1
        if not turn_does_nothing(turns[at]):
            return takes_back(prose(turns[at]))
    return None
