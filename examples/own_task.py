"""A task family of your own, with a grader of your own.

python examples/own_task.py
In a recipe, from this folder: task.kind = "own_task:Palindromes", such as
    retcon eval MODEL task.kind=own_task:Palindromes
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import Field

from retcon import Task
from retcon.config.schema import TaskSection
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.tasks.graders.text import find_boxed
from retcon.tasks.registry import CountTokens


@dataclass(frozen=True)
class PalindromeTasks:
    """Find a palindrome above a number. Many answers may be right, so that the grader looks at the answer itself."""

    digits: int = 4
    name: str = "palindromes"
    system: str | None = None

    def train(self, seed: int) -> Iterator[Task]:
        draw = random.Random(derive("palindromes", seed))
        while True:
            yield self._task(2 * draw.randrange(10 ** (self.digits - 1), 5 * 10 ** (self.digits - 1)))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """Odd numbers, which training does not draw; fewer where there are not so many."""
        draw = random.Random(derive("palindromes, held out", seed))
        halves = range(10 ** (self.digits - 1) // 2, 10**self.digits // 2)
        return [self._task(1 + 2 * n) for n in draw.sample(halves, min(count, len(halves)))]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        if trajectory.stop == "infrastructure":  # our fault: no reward
            return trajectory
        answer = find_boxed(trajectory.turns[-1].text) if trajectory.stop == "answer" else None
        least = int(task.answer)
        right = answer is not None and answer.isdigit() and answer == answer[::-1] and least < int(answer) < 2 * least
        return replace(trajectory, answer=answer, reward=1.0 if right else -1.0)

    def _task(self, least: int) -> Task:
        question = f"Give a palindrome above {least} and below {2 * least}, in \\boxed{{}}."
        return Task(f"palindromes/{least}", question, str(least))


class Palindromes(TaskSection):
    """Its fields are keys of the recipe's section [task]."""

    digits: int = Field(4, ge=3, description="of the number")

    def build(self, count_tokens: CountTokens | None = None) -> PalindromeTasks:
        return PalindromeTasks(self.digits)


if __name__ == "__main__":
    for task in Palindromes(digits=3).build().evaluation(3, seed=0):
        print(task.id, task.question)
