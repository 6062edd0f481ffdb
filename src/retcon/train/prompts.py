"""Which prompts a training run draws, in which order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.select.difficulty import within
from retcon.store.pass_rates import of_model, read_pass_rates
from retcon.tasks.registry import TaskSet, training_prompts
from retcon.tasks.types import Task
from retcon.train.selection import dynamic_sampling


class Prompts:
    """The prompts of a run: the task set's training stream, without what the recipe's pass rates leave out.

    model: fingerprint of the model that the run starts from, whose rates count; where the file has none of it, those of
    the only model that it has. inputs: what the order depends on besides the recipe, name to fingerprint.

    Everything that the run can come to need is looked at first. Raises RecordError for a file that is broken,
    RecipeError where it holds rates of several other models, where a task has no rate, or where none is within the
    bounds.
    """

    def __init__(self, recipe: Recipe, tasks: TaskSet, *, model: str) -> None:
        self.tasks = tasks
        self._recipe = recipe
        self._rates = _read(Path(recipe.select.pass_rates), model) if recipe.select.pass_rates else None
        self.inputs = {} if self._rates is None else {"pass rates": self._check()}

    def after(self, drawn: int) -> Iterator[Task]:
        """The stream after its first `drawn` tasks."""
        return islice(self._stream(), drawn, None)

    def _stream(self) -> Iterator[Task]:
        stream = training_prompts(self.tasks, self._recipe.run.seed)
        if self._rates is None:
            return stream
        section = self._recipe.select
        return within(stream, self._rates, low=section.min_pass_rate, high=section.max_pass_rate)

    def _check(self) -> str:
        """A hash of the tasks that the run can need, at the bound of its dynamic sampling."""
        file, config = self._recipe.select.pass_rates, self._recipe.rl
        dynamic = dynamic_sampling(self._recipe)
        needed = config.steps * (config.prompts + (dynamic.extra if dynamic else 0))
        digest = hashlib.sha256()
        found = 0
        try:
            for task in islice(self._stream(), needed):
                digest.update(task.id.encode() + b"\n")
                found += 1
        except RecipeError as error:
            raise RecipeError(
                f"select.pass_rates = {file}: {error}. The run can need {needed} tasks within the bounds, and {found} "
                "come before: measure more (`retcon difficulty --tasks`, with the same task set and run.seed), train "
                "for fewer steps, or change select.min_pass_rate and select.max_pass_rate"
            ) from None
        return digest.hexdigest()[:16]


def _read(file: Path, model: str) -> dict[str, float]:
    """Task to its rate. See `Prompts`."""
    measured = list(read_pass_rates(file))
    models = sorted({one.model for one in measured})
    if not models:
        raise RecipeError(f"select.pass_rates = {file}: there is no pass rate in it; `retcon difficulty` measures some")
    if model not in models:
        if len(models) > 1:
            raise RecipeError(
                f"select.pass_rates = {file} has rates of {len(models)} models ({', '.join(models)}), none of which is "
                f"the one that this run starts from ({model}): measure that one, or name a file with one model"
            )
        model = models[0]
    return {task: one.rate for task, one in of_model(iter(measured), model).items()}
