"""The groups of a run, step after step; with `rl.max_staleness` begun before the step that learns from them.

A step then does not wait for its longest rollouts with an empty engine: those of the next steps are under way beside
them, and go on while the step is computed. Groups are taken in the order of their prompts, not in that in which they
end: what is learnt from is not biased towards short rollouts, and the prompts that a checkpoint counts as drawn are
those that steps have taken. A run that goes on rolls out anew what was under way: no prompt is lost, none comes twice.
Nothing is begun for a step beyond the last of a stage: the next one's rollouts are others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from retcon.core.errors import RecipeError
from retcon.core.together import cancelled
from retcon.core.types import TRAINED, Trajectory
from retcon.tasks.types import Task
from retcon.train.rollouts import TrainingRollouts

T = TypeVar("T")
Group = tuple[Task, list[Trajectory]]


class GroupStream:
    """Groups of the tasks of `prompts`, in their order, begun up to `rl.max_staleness` steps ahead, but for none after
    the step `last`, that of the run where None. Within `async with`; what is under way at its end is given up."""

    def __init__(self, rollouts: TrainingRollouts, prompts: Iterator[Task], *, last: int | None = None) -> None:
        self.rollouts = rollouts
        self._last = rollouts.recipe.rl.steps if last is None else last
        self._prompts = prompts
        self._ahead = rollouts.recipe.rl.max_staleness
        self._under_way: deque[tuple[Task, asyncio.Task[list[list[Trajectory]]]]] = deque()
        self._named: dict[str, int] = {}  # the step that a task's rollouts were last named after

    async def __aenter__(self) -> GroupStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        running = [group for _, group in self._under_way]
        self._under_way.clear()
        await cancelled(running)

    async def take(self, count: int, *, step: int) -> list[Group]:
        """The next `count` groups, graded, of this step. Raises RecipeError where the prompts end before, and the first
        error of a rollout."""
        if not self._ahead:
            tasks = list(islice(self._prompts, count))
            _refuse_end(len(tasks), count, step)
            return list(zip(tasks, await self.rollouts.of(tasks, step=step), strict=True))
        self._begin(count, step)
        taken = list(islice(self._under_way, count))
        _refuse_end(len(taken), count, step)
        groups = [groups for (groups,) in await asyncio.gather(*(group for _, group in taken))]
        for _ in taken:
            self._under_way.popleft()
        return list(zip((task for task, _ in taken), groups, strict=True))

    def _begin(self, count: int, step: int) -> None:
        """See that `count` groups are under way for this step, and those of the next steps behind them.

        Each is named after the step that it is begun for; or a later one where its task came under that name before,
        as what was begun for it is used up by dynamic sampling: no two rollouts have one name.
        """
        of_a_step = self.rollouts.recipe.rl.prompts
        wanted = count + min(self._ahead, self._last - step) * of_a_step
        self._named = {task: name for task, name in self._named.items() if name >= step}
        for task in islice(self._prompts, max(0, wanted - len(self._under_way))):
            later = max(0, 1 + (len(self._under_way) - count) // of_a_step)
            name = self._named[task.id] = max(step + later, self._named.get(task.id, 0) + 1)
            group = asyncio.create_task(self.rollouts.of([task], step=name))
            self._under_way.append((task, group))


async def beside(work: Callable[[], T]) -> T:
    """What `work` gives, computed in a thread, so that tools are attended to meanwhile. Where the caller is cancelled,
    it is waited for all the same: weights must not change after that."""
    done = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise


def _refuse_end(found: int, count: int, step: int) -> None:
    if found < count:
        raise RecipeError(f"step {step}: the prompts have run out; give run_rl a task set that does not end")


def staleness(groups: Sequence[Sequence[Trajectory]], step: int) -> dict[str, float | None]:
    """How old the weights were that sampled what step `step` learns from, in steps: staleness_mean and staleness_max
    over sampled tokens. partial_rollouts: share of the rollouts that weights of several steps have sampled. None where
    there are none."""
    ages: list[int] = []
    partial = 0
    rollouts = [trajectory for group in groups for trajectory in group]
    for trajectory in rollouts:
        versions = [v for s in trajectory.segments if s.kind in TRAINED for v in s.versions or ()]
        ages += [step - 1 - version for version in versions]
        partial += len(set(versions)) > 1
    return {
        "staleness_mean": round(sum(ages) / len(ages), 4) if ages else None,
        "staleness_max": max(ages, default=None),
        "partial_rollouts": round(partial / len(rollouts), 4) if rollouts else None,
    }
