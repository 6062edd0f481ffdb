"""The rows that an environment begins with, where it has no tasks of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retcon.core.errors import RecipeError
from retcon.tasks.data.files.rows import read_rows


def rows_of(path: str, seeds: int) -> Sequence[Mapping[str, Any]]:
    """Those of a file (`retcon.tasks.data.files.rows`), or `{"seed": n}` for n from 0. Raises RecipeError where neither
    or both are named, DataError for a file that cannot be read."""
    if bool(path) == bool(seeds):
        raise RecipeError(
            "task.path, task.seeds: name one of them: the file whose rows the environment is reset with, or how many "
            "seeds, where it makes its tasks itself and `reset(seed=…)` says which"
        )
    return [dict(row.columns) for row in read_rows(Path(path))] if path else [{"seed": n} for n in range(seeds)]


class BegunRows:
    """The row of every task of an environment, and what `reset` said when the task was made. key: of [task], which
    names the environment."""

    def __init__(self, environment: str, key: str) -> None:
        self._environment, self._key = environment, key
        self._rows: dict[str, tuple[Mapping[str, Any], str]] = {}

    def keep(self, task: str, row: Mapping[str, Any], said: str = "") -> None:
        self._rows[task] = row, said

    def row(self, task: str) -> Mapping[str, Any]:
        """Raises RecipeError for a task of another set."""
        if task not in self._rows:
            raise RecipeError(f"{self._environment} has no task {task!r}, and its tools begin with one of its own")
        return self._rows[task][0]

    def check(self, task: str, said: str) -> None:
        """Raises RecipeError where `reset` says something else now."""
        before = self._rows[task][1]
        if said != before:
            raise RecipeError(
                f"task.{self._key}: {self._environment} says something else for the same row: {said[:80]!r} after "
                f"{before[:80]!r}; what it draws must follow from the row (task.seeds)"
            )
