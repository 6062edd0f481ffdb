"""What a task is."""

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


def epochs(draw: Callable[[int], Iterator[Task]], *, apart: int) -> Iterator[Task]:
    """The tasks of draw(0), then of draw(1), and so on; of an endless stream, that one alone.

    A task does not come again within `apart` draws, which is what one step can draw: rollouts are named by task and
    step. One that would is put off until it may. Raises RecipeError where there are fewer different tasks than that.
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
                "more tasks (those held out for evaluation are none of them), or lower rl.prompts (with select.dynamic "
                "also select.max_extra)"
            )
