"""What the pool's policy knows of a replica and of the trajectories whose keys and values lie there."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retcon.core.breaker import CircuitBreaker
from retcon.engine.pool.lengths import HORIZONS

RATES = 16
"""Answers that a replica's decoding rate is taken from."""
TELLING = 32
"""Generated tokens from which on an answer tells a rate: short ones are mostly prefill."""
BACK = 0.3
"""Share by which the clock goes back where a call has fewer tokens than it says: it may have been computed first."""


@dataclass(slots=True, eq=False)
class Trajectory:
    """id: its request id. group: what siblings share, by which one tells how long another gets. arrived: its number.
    tokens: of its history at the last event. limit: tokens that the call may add. home: where its keys and values lie.
    sent: when its call was given to `home`; None while it waits, or its tool runs. began: the replica's clock then.
    away: since when its tool runs. admitted: whether it ever had a place."""

    id: Hashable
    group: Hashable
    arrived: int
    tokens: int = 0
    limit: int = 0
    home: int | None = None
    sent: float | None = None
    began: float = 0.0
    away: float | None = None
    admitted: bool = False

    def size(self, clock: float) -> float:
        """Tokens that it has when its replica's clock says so."""
        if self.sent is None:
            return self.tokens
        return self.tokens + min(self.limit, clock - self.began)


@dataclass(slots=True)
class Replica:
    """capacity: tokens of keys and values that it holds; inf where that is unknown. max_requests: calls at a time.
    fastest: tokens a second that one call can be given at most. calls: those that are out.

    breaker: whether it is in rotation. rates: of the last answers, tokens a second of one call; rate: their mean, until
    answers tell as many as there can be. clock: forwards so far, as far as answers tell, by `clock_at`: every forward
    gives every call a token. room: what its residents are expected to take (`Lengths.room`), as reckoned at `weighed`.
    version: of its load. relieved: whether some gave way to calls none of which has ended since."""

    number: int
    capacity: float
    max_requests: int
    fastest: float
    breaker: CircuitBreaker
    residents: dict[Hashable, Trajectory] = field(default_factory=dict)
    calls: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    clock: float = 0.0
    clock_at: float = 0.0
    room: NDArray[np.float64] = field(default_factory=lambda: np.zeros((2, HORIZONS)))
    weighed: float = 0.0
    version: int = 0
    relieved: bool = False
    rate: float = field(init=False)

    def __post_init__(self) -> None:
        self.rate = self.fastest

    def closed(self, now: float) -> bool:
        """Whether it takes no call, whatever its load."""
        return not self.breaker.takes(now) or self.relieved or self.calls >= self.max_requests

    def tick(self, now: float) -> float:
        """The clock by now."""
        if now > self.clock_at:
            if self.calls:
                self.clock += (now - self.clock_at) * self.rate
            self.clock_at = now
        return self.clock

    def answered(self, one: Trajectory, generated: int, now: float) -> None:
        """A call came back: the clock is set by it. Its first forwards were prefill, so that there were as many as it
        has tokens, or a few more."""
        assert one.sent is not None
        if generated < TELLING or now <= one.sent:
            return
        self.rates.append(generated / (now - one.sent))
        self.rate = min(self.fastest, sum(self.rates) / len(self.rates))
        behind = one.began + generated - self.tick(now)
        self.clock += behind if behind > 0 else behind * BACK

    def sizes(self, now: float) -> NDArray[np.float64]:
        """(N,) tokens of its residents by now."""
        clock = self.tick(now)
        return np.fromiter((one.size(clock) for one in self.residents.values()), float, len(self.residents))

    def used(self, now: float) -> float:
        """Their sum."""
        return float(self.sizes(now).sum())

    def growing(self) -> float:
        """Tokens a second that its calls add."""
        return self.calls * self.rate
