"""What a task is."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Split = Literal["train", "evaluation"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: what the model is asked and what a right answer is.

    `id` names the problem for good (same problem, same id); `meta` holds what a data set knows about it. `before`: what
    was said before the question, (role, text) of user and assistant, such as worked examples.
    """

    id: str
    question: str
    answer: str
    system: str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)
    before: tuple[tuple[str, str], ...] = ()

    @property
    def content(self) -> bytes:
        """All of it, for a hash."""
        told = [self.id, self.question, self.answer, self.system, dict(self.meta), *self.before]
        return json.dumps(told, sort_keys=True, default=lambda value: type(value).__qualname__).encode()


def fingerprint_of(tasks: Sequence[Task]) -> str:
    """Tells problems by all that they hold, in their order, whatever their file and their ids are called."""
    return hashlib.sha256(b"\n".join(task.content for task in tasks)).hexdigest()[:16]


Lesson = Callable[[Sequence[str], random.Random], tuple[str, str | None]]
"""What a teacher writes next at a task: given what its calls so far have printed, its words, and its code unless this
is the answer."""
