"""Which prompts a training run draws, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from retcon.config.schema import Recipe
from retcon.tasks.registry import TaskSet, training_prompts
from retcon.tasks.types import Task


class Prompts:
    """The prompts of a run."""

    def __init__(self, recipe: Recipe, tasks: TaskSet) -> None:
        self._seed, self._tasks = recipe.run.seed, tasks

    def after(self, drawn: int) -> Iterator[Task]:
        """The stream after its first `drawn` tasks."""
        return islice(training_prompts(self._tasks, self._seed), drawn, None)
