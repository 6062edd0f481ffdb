"""What a policy is set to, and what it says is to be done."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """admit: share of a replica's keys and values that admitted trajectories are expected to take, `margin` standard
    deviations included. full: share from which on some give way. prefill: tokens a second that a replica computes of a
    history. fastest: tokens a second that one call can be given at most, until answers tell. pause, longest_pause:
    seconds that a replica which failed is left alone, doubled with each failure."""

    admit: float = 0.94
    margin: float = 0.5
    full: float = 0.97
    prefill: float = 10_000.0
    fastest: float = 200.0
    pause: float = 0.1
    longest_pause: float = 2.0


@dataclass(frozen=True, slots=True)
class Send:
    """The waiting call of a trajectory goes to a replica now."""

    id: Hashable
    replica: int


@dataclass(frozen=True, slots=True)
class Evict:
    """A trajectory leaves a replica: what is kept for it there may go. running: its call there is to be given up; it
    waits for a place again."""

    id: Hashable
    replica: int
    running: bool


Action = Send | Evict
