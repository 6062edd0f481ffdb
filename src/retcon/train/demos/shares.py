"""Wanted shares of demonstrations in which a call fails, met to within rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal

from retcon.core.types import Trajectory
from retcon.train.demos.types import Made

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


@dataclass
class Progress:
    """Towards `wanted` demonstrations with that share. done: how many can be had; fruitless: candidates since that last
    grew, whether or not any of them was kept."""

    share: Share
    wanted: int
    done: int = 0
    fruitless: int = 0
    _failed: int = 0
    _clean: int = 0

    def add(self, made: Made) -> None:
        """The next stretch of candidates."""
        failed = sum(one.failures > 0 for one in made.kept)
        self._failed, self._clean = self._failed + failed, self._clean + len(made.kept) - failed
        before, self.done = self.done, reachable(self._failed, self._clean, self.share, self.wanted)
        self.fruitless = 0 if self.done > before else self.fruitless + made.seen


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
