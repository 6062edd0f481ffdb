"""The number problems (`retcon.tasks.numbers`) as a task family, with the weak teacher of a cold start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import ClassVar

from pydantic import Field

from retcon.config.schema import TaskSection
from retcon.config.section import Probability
from retcon.core.types import Trajectory
from retcon.tasks.grade import boxed
from retcon.tasks.numbers import MAX_STEPS, problems
from retcon.tasks.registry import RIGHT, WRONG, CountTokens
from retcon.tasks.teacher import WEAK, Rates, next_turn
from retcon.tasks.types import Lesson, Task


@dataclass(frozen=True, slots=True)
class NumberTasks:
    """Implements `TaskSet` and `Taught`; graded by exact match of the boxed integer. rates: how weak its teacher is."""

    name: str = "numbers"
    system: str | None = None
    rates: Rates = WEAK
    steps: int = 2

    def train(self, seed: int) -> Iterator[Task]:
        return (p.task() for p in problems(seed, "train", self.steps))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [p.task() for p in islice(problems(seed, "evaluation", self.steps), count)]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        if trajectory.stop == "infrastructure":
            return trajectory
        answer = boxed(trajectory.turns[-1].text) if trajectory.turns and trajectory.stop == "answer" else None
        return replace(trajectory, answer=answer, reward=RIGHT if answer == task.answer else WRONG)

    def lessons(self, seed: int) -> Iterator[tuple[Task, Lesson]]:
        drawn = problems(seed, "train", self.steps)
        return ((p.task(), partial(next_turn, p, rates=self.rates)) for p in drawn)


class Numbers(TaskSection):
    """`kind = "numbers"`."""

    own_lengths: ClassVar[bool] = True
    steps: int = Field(2, ge=2, le=MAX_STEPS, description="of a problem: each uses the value of the one before")
    first_failure: Probability = Field(WEAK.first_failure, description="share of the teacher's first tries at a step "
                                       "that fail")  # fmt: skip
    retry_failure: Probability = Field(WEAK.retry_failure, description="share of its tries after an error that fail")
    wrong_method: Probability = Field(WEAK.wrong_method, description="share of its programs that run, but are of a "
                                      "wrong method")  # fmt: skip

    def build(self, count_tokens: CountTokens | None = None) -> NumberTasks:
        return NumberTasks(rates=Rates(self.first_failure, self.retry_failure, self.wrong_method), steps=self.steps)
