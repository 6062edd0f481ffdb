"""SAAR, similarity-aware adaptive rollback (CLEANER, arXiv 2601.15141): a failed call is replaced by its later fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from retcon.core.errors import nearest
from retcon.core.types import RepairRecord, Status, Turn
from retcon.purify.noop import is_noop
from retcon.purify.splice import purify
from retcon.purify.types import Lookahead

FAILURES: frozenset[Status] = frozenset({"error", "timeout", "limit", "malformed"})


@dataclass(frozen=True, slots=True)
class Saar:
    """The SAAR repair. Implements `Repair`.

    attempts: K, lookahead attempts at most; 0 leaves every failure as it is. gamma: γ in [0, 1], the similarity from
    which a repair is shallow. lookahead: whether an attempt is shown `all` that went before it at this turn (the
    paper) or the `latest` alone (the published code). failures: the statuses that count as a failure.

    The unit is the turn: it failed if one of its calls did, and a fix is a turn whose calls all succeed. A fix that
    does nothing (`pass`) or does not fit the budget is one more failed attempt.
    """

    attempts: int = 3
    gamma: float = 0.5
    lookahead: Literal["all", "latest"] = "all"
    failures: frozenset[Status] = FAILURES

    def __post_init__(self) -> None:
        if self.attempts < 0:
            raise ValueError(f"attempts must be 0 or more, not {self.attempts}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must lie in [0, 1], not {self.gamma}")
        if self.lookahead not in ("all", "latest"):
            raise ValueError(f"lookahead must be 'all' or 'latest', not {self.lookahead!r}")
        for status in self.failures - FAILURES:
            why = "never counts" if status in get_args(Status) else f"is no status{nearest(status, FAILURES)}"
            raise ValueError(f"failures: {status!r} {why}; choose from {', '.join(sorted(FAILURES))}")

    def failed(self, turn: Turn) -> bool:
        """Whether a call of this turn failed. A turn with an infrastructure fault did not, nor one already judged."""
        statuses = {o.status for o in turn.observations}
        return turn.repair is None and "infrastructure" not in statuses and not self.failures.isdisjoint(statuses)

    async def repair(self, turn: Turn, lookahead: Lookahead) -> Sequence[Turn]:
        """The purified turn; or the failure as it happened; or the failure and all that led from it to an answer.

        An answer is committed only where its whole history is, and fits: with `latest` it may not have seen what
        failed before, and then would not be on-policy.
        """
        if self.attempts == 0:
            return (turn,)
        made: list[Turn] = []
        shown = [turn]
        reason = "no attempt worked"
        for _ in range(self.attempts):
            visible = shown if self.lookahead == "all" else shown[-1:]
            attempt = await lookahead.attempt(visible)
            if attempt is None:
                reason = "no budget for another attempt"
                break
            made.append(attempt)
            if attempt.stop == "length":
                continue
            if not attempt.calls:
                if len(visible) == len(shown) and lookahead.fits(*shown, attempt):
                    return self._answered(turn, made)
                reason = "the answer does not follow from the whole history, or does not fit"
                break
            if self._worked(attempt):
                fixed = purify((turn, *made), self.gamma)
                if lookahead.fits(fixed):
                    return (fixed,)
                reason = "the fix does not fit the budget"
            shown.append(attempt)
        return (replace(turn, abandoned=tuple(made), repair=RepairRecord("unrepaired", len(made), reason=reason)),)

    def _worked(self, attempt: Turn) -> bool:
        """Whether an attempt with calls is a fix."""
        if any(o.status == "infrastructure" for o in attempt.observations):
            return False
        return not self.failed(attempt) and not all(map(is_noop, attempt.calls))

    @staticmethod
    def _answered(turn: Turn, made: Sequence[Turn]) -> Sequence[Turn]:
        """The raw history with the answer. What was cut off stays on the record of the turn that it had followed."""
        committed = [replace(turn, repair=RepairRecord("answered", attempts=len(made)))]
        for attempt in made:
            if attempt.stop == "length":
                last = committed[-1]
                record = last.repair or RepairRecord("answered", attempts=0, reason="followed by a cut attempt")
                committed[-1] = replace(last, abandoned=(*last.abandoned, attempt), repair=record)
            else:
                committed.append(attempt)
        return committed
