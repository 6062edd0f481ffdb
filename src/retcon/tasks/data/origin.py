"""What the path of a source means: a file, a registered family, a task set of one's own, or a data set of the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from retcon.config.schema import TaskSection
from retcon.core.errors import nearest, told_as
from retcon.core.registry import at_path
from retcon.store.compression import plain_name
from retcon.tasks.checked import serves
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.files.rows import SUFFIXES, is_data_file, is_pattern
from retcon.tasks.registry import TaskSet

Origin = Literal["file", "family", "import", "hub"]
_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def origin_of(path: str) -> Origin:
    """Raises DataError, with the nearest name, for what is none of them."""
    if path and (Path(path).exists() or is_pattern(path)):  # an empty one would be the working directory
        return "file"
    if path in families():
        return "family"
    if _IMPORT.fullmatch(path):
        return "import"
    if is_data_file(path):
        return "file"  # absent, which reading it says
    if _HUB.fullmatch(path):
        return "hub"
    folder = Path(path).parent
    there = [p.name for p in folder.iterdir() if is_data_file(p.name)] if folder.is_dir() else []
    raise DataError(
        f"no tasks '{path}'{nearest(path, [*families(), *there])}: give a file ({', '.join(SUFFIXES)}), a family "
        f"({', '.join(families())}), a data set of the hub (ORG/NAME), or my_package.my_module:MyTasks"
    )


def families() -> list[str]:
    """The task families that need no data."""
    return [name for name in TaskSection.kinds.names if name != "file"]


def short_name(path: str) -> str:
    """What a source is called where it has no name of its own: a file without folder and suffix, a pattern as the
    folder that it begins with."""
    if is_pattern(path):
        path = str(next((p for p in Path(path).parents if not is_pattern(str(p))), ""))
    name = plain_name(Path(path).name) or "data"
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def imported_tasks(path: str) -> TaskSet:
    """The task set, or what makes one without arguments, at `my_package.my_module:MyTasks`. Raises DataError."""
    try:
        found = at_path(path)
    except ImportError as error:
        raise DataError(f"{path} cannot be imported: {error}") from error
    tasks: TaskSet = found
    if isinstance(found, type) or (callable(found) and not serves(found)):
        with told_as(DataError, f"{path}: no task set can be made: it"):
            try:
                tasks = found()
            except TypeError as error:
                raise DataError(f"{path}: it must make a task set without arguments: {error}") from error
    if not serves(tasks):
        raise DataError(f"{path} is not a task set: it needs name, system, train(seed), evaluation(count, seed), "
                        "grade(task, trajectory) (retcon.tasks.registry.TaskSet)")  # fmt: skip
    return tasks
