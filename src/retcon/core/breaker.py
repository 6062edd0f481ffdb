"""Circuit breaker: a server that fails rests for a while, then a single request probes it.

Without it, least load sends all new work to a server that fails at once, as it never has requests in flight.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CircuitBreaker:
    """Breaker that takes one server out of rotation until a probe succeeds.

    Times are seconds of one clock. A probe that has neither failed nor been answered after `longest` no longer blocks
    other requests: answers may take minutes. A fault after that means a longer pause still.

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

    def allows(self, now: float) -> bool:
        """Return whether the server is in rotation, or due for a probe."""
        return self.until <= now

    def is_resting(self, now: float) -> bool:
        """Return whether it failed and is not probed yet: answers are to requests sent before."""
        return self.until > now and not self.probing

    def record_request(self, now: float) -> None:
        """Record a request to the server; after a fault it is the probe."""
        if self.faults and not self.probing:
            self.probing, self.until = True, now + self.longest

    def record_success(self, now: float) -> None:
        """Record an answer of the server."""
        if not self.is_resting(now):
            self.faults, self.probing, self.until = 0, False, 0.0

    def record_failure(self, now: float) -> None:
        """Record a fault of the server."""
        if not self.is_resting(now):
            self.since = self.since if self.faults else now
            self.until = now + min(self.longest, self.first * 2.0 ** min(self.faults, 30))
            self.faults, self.probing = self.faults + 1, False
