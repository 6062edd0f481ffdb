"""Branch and repair: sample a failed call anew from the clean history.

Ours. A fix by SAAR was sampled after its failure and is learnt without it, where it is unlikely. A fresh try was
sampled where it is learnt: it needs no scoring and no correction. The commit is chosen among tries, as in best of n;
SAAR repairs what no fresh try gets right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pydantic import Field

from retcon.config.section import NonNegative, Positive
from retcon.core.types import REPLACED, RepairRecord, Turn
from retcon.purify.failing import is_fix
from retcon.purify.kinds.saar import SaarSection
from retcon.purify.saar import Saar
from retcon.purify.types import Lookahead, Repair


@dataclass(frozen=True, slots=True)
class Branch:
    """Repair by fresh tries. fresh: tries at most that follow h_t as if the failed call had not been made; the first
    whose calls all succeed is committed as it was sampled. saar: what is done where none does; it also says what a
    failure is.

    A fresh try that answers without a call is a try like any other, and not committed: else the failure of a call would
    teach not to call."""

    fresh: int = 2
    saar: Saar = field(default_factory=Saar)

    def __post_init__(self) -> None:
        if self.fresh < 1:
            raise ValueError(f"fresh must be 1 or more, not {self.fresh}")

    @property
    def attempts(self) -> int:
        return self.fresh + self.saar.attempts

    def failed(self, turn: Turn) -> bool:
        return self.saar.failed(turn)

    async def repair(self, turn: Turn, lookahead: Lookahead) -> Sequence[Turn]:
        """Return the first fresh try that worked, else SAAR's turns.

        SAAR's record lists the fresh tries."""
        tries: list[Turn] = []
        for _ in range(self.fresh):
            attempt = await lookahead.attempt(())
            if attempt is None:
                break
            tries.append(attempt)
            if is_fix(attempt) and lookahead.fits(attempt):
                record = RepairRecord("resampled", len(tries), fresh=len(tries))
                return (replace(attempt, abandoned=(turn, *tries), repair=record),)
        first, *rest = await self.saar.repair(turn, lookahead)
        record = first.repair or RepairRecord("unrepaired", 0, reason="no fresh try worked")
        record = replace(record, attempts=record.attempts + len(tries), fresh=len(tries))
        made = first.abandoned
        # Where the failure is among them, it was sampled first.
        abandoned = (made[0], *tries, *made[1:]) if record.decision in REPLACED else (*tries, *made)
        return (replace(first, abandoned=abandoned, repair=record), *rest)


class BranchSection(SaarSection):
    """Section of `kind = "branch"`, for `Branch`; SAAR's keys are for the attempts after the fresh tries."""

    fresh: Positive = Field(2, description="fresh tries at a failed turn, before SAAR's attempts")
    attempts: NonNegative = Field(1, description="K: most lookahead attempts, after the fresh tries")

    def build(self) -> Repair:
        return Branch(self.fresh, self.saar())
