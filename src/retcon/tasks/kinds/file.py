"""Tasks from data: files, data sets of the hub, other task sets (`retcon.tasks.data`, docs/data/problems.md)."""

from __future__ import annotations

from retcon.config.schema import Recipe, TaskSection
from retcon.core.errors import RecipeError
from retcon.tasks.benchmarks import BENCHMARKS
from retcon.tasks.data.conventions import CONTEXT
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.registry import CountTokens


class File(FileTaskSettings, TaskSection):
    """Section [task] of kind `file`."""

    def check_rollouts(self, recipe: Recipe) -> None:
        named = self.benchmark or self.path
        given = BENCHMARKS.find(named).format if named in BENCHMARKS.names else self.format
        if given == CONTEXT.name and "rlm" not in recipe.rollout.tools:
            raise RecipeError(
                f"the context of {named} is a variable of the tool rlm, and no part of the question: set "
                "rollout.tools=rlm"
            )

    def build(self, count_tokens: CountTokens | None = None) -> DataTasks:
        return self.open(count_tokens)
