"""Wanted shares of demonstrations in which a call fails, met to within rounding."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Literal

from retcon.core.types import Trajectory

Share = Literal["any"] | float


def wanted_of(total: int, share: float) -> int:
    """How many of `total` a share is, rounded half up."""
    return floor(total * share + 0.5)


def reachable(failed: int, clean: int, share: Share, wanted: int) -> int:
    """How many demonstrations, `wanted` at most, can be had of `failed` and `clean` ones with that share."""
    most = min(wanted, failed + clean)
    if share == "any":
        return most
    while most and not (wanted_of(most, share) <= failed and most - wanted_of(most, share) <= clean):
        most -= 1
    return most


def with_share(found: Sequence[Trajectory], share: Share, wanted: int) -> list[Trajectory]:
    """The first of each sort, in their order, as many as `reachable` says."""
    failed = sum(one.failures > 0 for one in found)
    total = reachable(failed, len(found) - failed, share, wanted)
    if share == "any":
        return list(found[:total])
    left = {True: wanted_of(total, share), False: total - wanted_of(total, share)}
    kept: list[Trajectory] = []
    for one in found:
        if left[one.failures > 0]:
            left[one.failures > 0] -= 1
            kept.append(one)
    return kept
