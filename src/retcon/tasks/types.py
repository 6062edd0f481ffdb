"""What a task is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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
