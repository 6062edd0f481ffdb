"""A task set that comes to an end, gone through again and again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

from retcon.core.errors import RecipeError
from retcon.tasks.types import Task


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
