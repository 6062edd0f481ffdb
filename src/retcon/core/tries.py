"""First tries: what a policy does before any failure has told it better."""

from __future__ import annotations

from dataclasses import dataclass

from retcon.core.types import Trajectory


@dataclass(frozen=True, slots=True)
class FirstTries:
    """made: turns that called and did not answer a failure. failed: those of them in which a call failed."""

    made: int
    failed: int

    @property
    def rate(self) -> float | None:
        """Share that failed; None where nothing was tried."""
        return self.failed / self.made if self.made else None


def first_tries(trajectory: Trajectory) -> FirstTries:
    """The first tries of a trajectory as it was sampled, whether or not failures were then repaired.

    An attempt that comes right after a failed one, in the history or in a lookahead, is a repair and no first try; so
    that the figure means the same with purification and without. Those of a beginning that it shares are another's.
    """
    made = failed = 0
    repairing = False
    for number, turn in enumerate(trajectory.turns):
        for attempt in turn.raw():
            fails = attempt.failures > 0
            if number >= trajectory.shared_turns and attempt.observations and not repairing:
                made += 1
                failed += fails
            if attempt.observations:  # an attempt that was cut off, or answered in vain, leaves the failure standing
                repairing = fails
        repairing = turn.failures > 0  # the next turn follows what was committed
    return FirstTries(made, failed)
