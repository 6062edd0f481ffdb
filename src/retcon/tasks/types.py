"""The type of a task, its fingerprint, and passes over tasks."""

from __future__ import annotations

import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from retcon.core.errors import RecipeError

Split = Literal["train", "evaluation"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: its question and its right answer.

    `id` names the problem for good (same problem, same id); `meta` holds other columns of a data set. `before`: earlier
    messages, (role, text) of user and assistant, such as worked examples.
    """

    id: str
    question: str
    answer: str
    system: str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)
    before: tuple[tuple[str, str], ...] = ()

    @property
    def content(self) -> bytes:
        """Serialize all fields, for a hash."""
        fields = [self.id, self.question, self.answer, self.system, dict(self.meta), *self.before]
        return json.dumps(fields, sort_keys=True, default=lambda value: type(value).__qualname__).encode()


def fingerprint_of(tasks: Sequence[Task]) -> str:
    """Hash the content of tasks in their order."""
    return hashlib.sha256(b"\n".join(task.content for task in tasks)).hexdigest()[:16]


Lesson = Callable[[Sequence[str], random.Random], tuple[str, str | None]]
"""A teacher's next turn at a task, given the outputs of its calls so far: its words, and its code or None for the
answer."""


def epochs(draw: Callable[[int], Iterator[Task]], *, apart: int) -> Iterator[Task]:
    """Yield the tasks of draw(0), then of draw(1), and so on; an endless stream never ends.

    A task repeats only after `apart` draws, the most of one step, as rollouts are named by task and step; an earlier
    repetition is put off. Raises RecipeError where there are fewer different tasks than that.
    """
    recent: deque[str] = deque(maxlen=apart - 1)
    put_off: list[Task] = []
    for epoch in count():
        any_came = False
        for task in draw(epoch):
            put_off.append(task)
            while (n := next((n for n, t in enumerate(put_off) if t.id not in recent), None)) is not None:
                any_came = True
                recent.append(put_off[n].id)
                yield put_off.pop(n)
        if not any_came:
            different = len({t.id for t in put_off})
            raise RecipeError(
                f"the task set ends after {different} different tasks, and a step can draw {apart}: give it "
                "more tasks (those held out for evaluation do not count), or lower rl.prompts (with select.dynamic "
                "also select.max_extra)"
            )
