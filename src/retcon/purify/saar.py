"""SAAR, similarity-aware adaptive rollback (CLEANER, arXiv 2601.15141)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from msgspec.structs import replace

from retcon.core.types import RepairRecord, Status, Turn
from retcon.purify.failing import FAILURES, check_failures, has_failed, is_fix
from retcon.purify.splice import purify
from retcon.purify.types import Lookahead

Shown = Literal["all", "first", "latest"]


@dataclass(frozen=True, slots=True)
class Saar:
    """Repair by SAAR.

    attempts: K, lookahead attempts at most; 0 leaves every failure as it is. gamma: γ in [0, 1], the similarity from
    which a repair is shallow. lookahead: what an attempt is shown of those that went before it at this turn: `all`,
    the `first` failure alone (the paper's equations) or the `latest` alone (the published code). failures: the statuses
    that start a repair; no other status than `ok` makes a fix, whatever they are. agree: attempts that must work with
    the same output before the last of them is the fix (ours; the paper takes the first).

    The unit is the turn: it failed if one of its calls did, and a fix is a turn whose calls all succeed. A fix that
    does nothing (`pass`) or does not fit the budget is one more failed attempt."""

    attempts: int = 3
    gamma: float = 0.5
    lookahead: Shown = "all"
    failures: frozenset[Status] = FAILURES
    agree: int = 1

    def __post_init__(self) -> None:
        if self.attempts < 0:
            raise ValueError(f"attempts must be 0 or more, not {self.attempts}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], not {self.gamma}")
        if self.lookahead not in get_args(Shown):
            raise ValueError(f"lookahead must be 'all', 'first' or 'latest', not {self.lookahead!r}")
        if self.agree < 1 or (self.attempts and self.agree > self.attempts):
            raise ValueError(f"agree must be from 1 to attempts = {self.attempts}, not {self.agree}")
        check_failures(self.failures)

    def failed(self, turn: Turn) -> bool:
        """Whether this turn counts as a failure."""
        return has_failed(turn, self.failures)

    async def repair(self, turn: Turn, lookahead: Lookahead) -> Sequence[Turn]:
        """Return the purified turn, the failure, or the failure and an answer.

        An answer is committed only after the history that it has seen, where that begins with the failure (with
        `latest` it may not have seen it), fits, and could have happened: where tools keep state, an attempt that
        ran in the state before the failure may have got another output than after it."""
        if self.attempts == 0:
            return (turn,)
        made: list[Turn] = []
        shown = [turn]
        reason = "no attempt worked"
        for _ in range(self.attempts):
            visible = self._visible(shown)
            attempt = await lookahead.attempt(visible)
            if attempt is None:
                reason = "no budget for another attempt"
                break
            made.append(attempt)
            if attempt.stop == "length":
                continue
            if not attempt.calls:
                if visible[0] is not turn:
                    reason = "the answer does not follow from the failure"
                elif not lookahead.fits(*visible, attempt):
                    reason = "the answer does not fit"
                elif not await lookahead.replays_identically(visible):
                    reason = "the answer follows from what the tools would not have said after the failure"
                else:
                    return self._answered(turn, made, visible)
                break
            if is_fix(attempt):
                alike = sum(_outputs(one) == _outputs(attempt) for one in made if is_fix(one))
                if alike < self.agree:
                    reason = "no other attempt had the same output"
                    continue  # the next one does not see it, as it is to agree by itself
                fixed = purify((turn, *made), self.gamma)
                if lookahead.fits(fixed):
                    return (fixed,)
                reason = "the fix does not fit the budget"
            shown.append(attempt)
        return (replace(turn, abandoned=tuple(made), repair=RepairRecord("unrepaired", len(made), reason=reason)),)

    def _visible(self, shown: Sequence[Turn]) -> Sequence[Turn]:
        """Select the failed attempts that the next attempt is shown."""
        if self.lookahead == "all":
            return shown
        return shown[:1] if self.lookahead == "first" else shown[-1:]

    @staticmethod
    def _answered(turn: Turn, made: Sequence[Turn], seen: Sequence[Turn]) -> Sequence[Turn]:
        """Return the failure, the attempts the answer saw, and the answer."""
        committed = [replace(turn, repair=RepairRecord("answered", attempts=len(made)))]
        for attempt in made[:-1]:
            if not any(attempt is one for one in seen):
                last = committed[-1]
                record = last.repair or RepairRecord("answered", attempts=0, reason="followed by a cut attempt")
                committed[-1] = replace(last, abandoned=(*last.abandoned, attempt), repair=record)
            else:
                committed.append(attempt)
        return [*committed, made[-1]]


def _outputs(turn: Turn) -> list[str]:
    return [observation.text for observation in turn.observations]
