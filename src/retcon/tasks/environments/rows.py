"""The rows that an environment begins with, where it has no tasks of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retcon.core.errors import RecipeError
from retcon.tasks.data.rows import read_rows


def rows_of(path: str, seeds: int) -> Sequence[Mapping[str, Any]]:
    """Those of a file (`retcon.tasks.data.rows`), or `{"seed": n}` for n from 0. Raises RecipeError where neither or
    both are named, DataError for a file that cannot be read."""
    if bool(path) == bool(seeds):
        raise RecipeError(
            "task.path, task.seeds: name one of them: the file whose rows the environment is reset with, or how many "
            "seeds, where it makes its tasks itself and `reset(seed=…)` says which"
        )
    return [dict(row.columns) for row in read_rows(Path(path))] if path else [{"seed": n} for n in range(seeds)]
