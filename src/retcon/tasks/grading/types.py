"""What a grader is given, and what it says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from retcon.core.errors import RecipeError
from retcon.core.types import Trajectory
from retcon.sandbox.types import Sandbox
from retcon.tasks.types import Task


class ScoreError(RecipeError, ValueError):
    """A grader counts in other numbers than from 0 to 1. It does so of some replies only, such as the right ones:
    without their rollouts the others would say something else, so the work ends."""


_ROUNDING = 1e-6
"""How far beyond 0 or 1 a sum of shares may come by rounding, in 32-bit floats too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a grader found. Raises ScoreError for a score outside of [0, 1], but by rounding, ValueError for one that is
    no number.

    score: how good the answer is. right: whether it counts as right. why: a short phrase for people. answer: what the
    grader took for the answer, None where it found none.
    """

    score: float
    right: bool
    why: str = ""
    answer: str | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.score <= 1.0:
            if not -_ROUNDING <= self.score <= 1.0 + _ROUNDING:
                error = ScoreError if math.isfinite(self.score) else ValueError
                raise error(f"a score of {self.score:.9g}: it must be within [0, 1]")
            object.__setattr__(self, "score", min(max(self.score, 0.0), 1.0))

    @classmethod
    def of(cls, right: bool, why: str = "", answer: str | None = None) -> Verdict:
        """Right or wrong, and nothing between."""
        return cls(float(right), right, why, answer)


@dataclass(frozen=True, slots=True)
class Fault:
    """Nobody can tell whether the answer is right: a grader raised, hung, took too much memory or could not be
    reached. Never a reward. why: for people."""

    why: str


Outcome = Verdict | Fault


@dataclass(frozen=True, slots=True)
class Reply:
    """What is graded. text: all that the model said in its last turn. trajectory: the whole rollout, where there is
    one."""

    text: str
    trajectory: Trajectory | None = None


class Grader(Protocol):
    """Scores replies, many at a time. It keeps limits of time and memory of its own."""

    async def grade(self, task: Task, reply: Reply) -> Verdict:
        """Raises InfrastructureFault where it cannot tell, ValueError where the task holds nothing that it can grade
        by, ScoreError where it counts otherwise."""
        ...

    async def check(self, task: Task) -> None:
        """Raises ValueError, naming the task, where `grade` could not grade any reply to it."""
        ...

    async def close(self) -> None:
        """End what it started. Closing twice is no error."""
        ...


class Host(Protocol):
    """What a grader may ask for while it is opened."""

    async def sandbox(self) -> Sandbox:
        """The sandbox that all graders share, started. Raises SandboxUnavailable."""
        ...

    async def grader(self, name: str) -> Grader:
        """Another grader, opened with its own settings. Raises RecipeError for one that is unknown."""
        ...
