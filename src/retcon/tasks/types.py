"""What a task is, and what a grader is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

Split = Literal["train", "evaluation"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: what the model is asked and what a right answer is.

    `id` names the problem for good (same problem, same id); `meta` holds what a data set knows about it.
    """

    id: str
    question: str
    answer: str
    system: str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)


class Grader(Protocol):
    """Scores a final reply; pure, no I/O."""

    def __call__(self, task: Task, reply: str) -> bool: ...
