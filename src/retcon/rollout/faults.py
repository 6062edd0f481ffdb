"""Why rollouts were lost: told once for each reason as it comes up, and again by whoever gives up because of them."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from retcon.core.types import Trajectory

log = logging.getLogger(__name__)

TOLD = 5
"""Reasons that are told and kept: more say no more."""
CHARS = 400
MOST_LOST = 0.05  # share of rollouts; an evaluation that lost more says nothing
_OF_ONE = re.compile(r"^(?:request|rollout) \S+: ")


@dataclass(frozen=True, slots=True, eq=False)
class Faults:
    """The reasons of the rollouts of a context."""

    _why: Counter[str] = field(default_factory=Counter)

    def add(self, id: str, why: str) -> None:
        """A rollout cannot go on; why: what was said, of which what names the rollout is left out."""
        why = " ".join(_OF_ONE.sub("", why).split())[:CHARS]
        if why not in self._why:
            if len(self._why) >= TOLD:
                return
            log.warning("rollout %s is lost: %s", id, why)
        self._why[why] += 1

    @property
    def first(self) -> str:
        """The first reason; empty where there was none."""
        return next(iter(self._why), "")

    @property
    def why(self) -> str:
        """The most frequent reason, as a part of a sentence; empty where there was none."""
        return f", most often as {self._why.most_common(1)[0][0]}" if self._why else ""


def lost_in_grading(rollouts: Iterable[Trajectory]) -> tuple[int, int]:
    """Of how many rollouts that gave an answer no grader could tell whether it is right, and how many gave one: those
    whose last turn ended by itself and calls nothing, and those whose harness returned text."""
    ends = [t for t in rollouts if isinstance(t.returned, str) or _answers(t)]
    return sum(t.reward is None for t in ends), len(ends)


def _answers(trajectory: Trajectory) -> bool:
    last = trajectory.turns[-1] if trajectory.turns else None
    return last is not None and last.stop == "answer" and not last.calls
