"""Which servers are in rotation: one that fails is left alone for a while, then a single request probes it.

Without it, least load sends all new work to a server that fails at once, as nothing is ever under way there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CircuitBreaker:
    """Takes one server out of rotation after a fault, and back in by a probe.

    Times are seconds of one clock. A probe that has neither failed nor been answered after `longest` keeps others out
    no more: answers may take minutes. A fault after that means a longer pause still.

    Args:
        first: Seconds of the pause after a fault, doubled with each further one.
        longest: Seconds that a pause takes at most, and that a probe is waited for.
    """

    first: float
    longest: float
    until: float = 0.0
    since: float = 0.0
    faults: int = 0
    probing: bool = False

    def takes(self, now: float) -> bool:
        """Whether the server is in rotation, or is to be probed."""
        return self.until <= now

    def rests(self, now: float) -> bool:
        """Whether it failed and is not probed yet: what comes back now was sent before."""
        return self.until > now and not self.probing

    def sent(self, now: float) -> None:
        """Note a request that goes there; after a fault it is the probe."""
        if self.faults and not self.probing:
            self.probing, self.until = True, now + self.longest

    def answered(self, now: float) -> None:
        """Note an answer."""
        if not self.rests(now):
            self.faults, self.probing, self.until = 0, False, 0.0

    def failed(self, now: float) -> None:
        """Note a fault of the server."""
        if not self.rests(now):
            self.since = self.since if self.faults else now
            self.until = now + min(self.longest, self.first * 2.0 ** min(self.faults, 30))
            self.faults, self.probing = self.faults + 1, False
