"""The tasks of an environment, graded by its own reward. Implements `TaskSet`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.tasks.environments.sessions import Sessions
from retcon.tasks.registry import RIGHT, WRONG
from retcon.tasks.types import Task

_RANGE = 2**63  # of `derive`


class EnvironmentTasks:
    """sessions: of the environment. evaluation_share: of its tasks that are held out, where it has none for evaluation.
    right_from: the reward from which a rollout is right (1, else -1); None: rewards stay as they are."""

    system: str | None = None
    ends = True
    """What it holds out are rows that it has, all of which can be evaluated on (`retcon.tasks.checked.problems_of`)."""

    def __init__(self, sessions: Sessions, *, evaluation_share: float, right_from: float | None) -> None:
        self.sessions = sessions
        self.name = sessions.environment.name
        self._share = evaluation_share
        self._right_from = right_from

    def train(self, seed: int) -> Iterator[Task]:
        """Each task once, in an order that the seed makes."""
        return iter(sorted(self._split[0], key=lambda task: derive("order", seed, task.id)))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """`count` tasks that are held out, drawn by the seed; all of them where there are no more."""
        return sorted(self._split[1], key=lambda task: derive("evaluation", seed, task.id))[:count]

    async def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its answer and the environment's reward. Raises InfrastructureFault where that could not
        be had."""
        if trajectory.stop == "infrastructure":
            return trajectory
        state = await self.sessions.final(task.id, trajectory.id)
        reward, answer = await self.sessions.environment.reward(task, trajectory, state)
        if self._right_from is not None:
            reward = RIGHT if reward >= self._right_from else WRONG
        return replace(trajectory, reward=reward, answer=answer)

    @cached_property
    def _split(self) -> tuple[list[Task], list[Task]]:
        """What trains, and what evaluates; a task for evaluation does not train, whatever its id."""
        own = list(self.sessions.environment.tasks("train"))
        held_out = list(self.sessions.environment.tasks("evaluation"))
        if not own and not held_out:
            raise RecipeError(f"task.environment: {self.name} has no task at all")
        if held_out:
            asked = {_told(task) for task in held_out}
            if train := [task for task in own if _told(task) not in asked]:
                return train, held_out
            problems = self._problems([*own, *held_out])  # they may all begin alike
            evaluates = set(problems[len(own) :])
            return [task for problem, task in zip(problems, own, strict=False) if problem not in evaluates], held_out
        problems = self._problems(own)
        first: dict[object, Task] = {}
        for problem, task in zip(problems, own, strict=True):
            first.setdefault(problem, task)
        drawn = self._held_out(list(first.values()))
        ids = {task.id for task in drawn}
        return [task for problem, task in zip(problems, own, strict=True) if first[problem].id not in ids], drawn

    def _problems(self, tasks: Sequence[Task]) -> Sequence[object]:
        """Of each task which problem it is."""
        problems = [self._same(task) for task in tasks]
        if len(set(problems)) == 1 and not tasks[0].answer:  # rows that say nothing: what differs the environment draws
            return [task.id for task in tasks]
        return problems

    def _same(self, task: Task) -> tuple[object, ...]:
        """What tasks have in common that are one problem. Of those without an answer the question may be that of all (a
        game with a hidden word): their rows tell them apart."""
        if task.answer:
            return _told(task)
        return (*_told(task), repr(sorted(self.sessions.environment.row(task.id).items())))

    def _held_out(self, own: list[Task]) -> list[Task]:
        """By the ids alone, so that tasks that are added move no other; one at least, where any is to be. own: of each
        problem the first task, whose id draws for all that are the same."""
        drawn = sorted((derive("held out", task.id), n) for n, task in enumerate(own))
        within = [n for place, n in drawn if place < self._share * _RANGE]
        return [own[n] for n in sorted(within or [n for _, n in drawn[: self._share > 0]])]


def _told(task: Task) -> tuple[object, ...]:
    """What a task asks, and its answer."""
    return task.before, task.question, task.answer
