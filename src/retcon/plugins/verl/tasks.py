"""Reading of rows of verl's data sets, ours or others', as tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from retcon.config.schema import TaskSection
from retcon.core.errors import RecipeError
from retcon.tasks.data.conventions import find_convention
from retcon.tasks.data.fields import ColumnError, Item, question_key
from retcon.tasks.data.load import check_grader_name, choose_grader
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task

OWN = ("raw_prompt", "data_source", "reward_model", "extra_info", "grader")
"""The columns of a row that say what the task is."""
VERL = find_convention("verl")


def reading_of(section: TaskSection, family: TaskSet | None) -> Callable[[Mapping[str, Any]], Task]:
    """Return a reader of rows under a recipe's [task], which fills gaps. family: the task family, None for data. Raises
    DataError for an unknown grader."""
    if family is not None:
        return partial(task_of, system=family.system)
    assert isinstance(section, FileTaskSettings)
    if section.grader:
        check_grader_name(section.grader, "task.grader")
    return partial(task_of, grader=section.grader, system=section.system or None)


def task_of(row: Mapping[str, Any], *, grader: str = "", system: str | None = None) -> Task:
    """Convert a row, as verl's agent loops get it, to a task. Its prompt's messages are in `raw_prompt`.
    grader, system: for rows that bring none.

    A row without an id of its own is named by its question. Raises RecipeError for one that cannot be read.
    """
    read, by = choose_grader(_read(row), grader, VERL.grader)
    about = {"source": read.source, "reference": read.reference}
    meta = {**read.meta, "grader": by, **{k: v for k, v in about.items() if v}}
    return Task(
        _id(read), read.question, read.answer, system if read.system is None else read.system, meta, read.before
    )


class Repeats:
    """Counter of a task's earlier rollouts in a step or validation."""

    def __init__(self) -> None:
        self._step: object = None
        self._had: Counter[str] = Counter()

    def before(self, step: object, rows: Iterable[Mapping[str, Any]], sizes: Iterable[int]) -> list[int]:
        """Count each row's earlier rollouts of its task in the step. A step's rows may come in several calls. sizes:
        rollouts of each. A row that cannot be read counts for nothing: its own rollout raises the error."""
        if step != self._step:
            self._step, self._had = step, Counter()
        return [self._count(row, size) for row, size in zip(rows, sizes, strict=True)]

    def _count(self, row: Mapping[str, Any], size: int) -> int:
        try:
            name = _id(_read(row))
        except RecipeError:
            return 0
        self._had[name] += size
        return self._had[name] - size


def _read(row: Mapping[str, Any]) -> Item:
    known = {name: row[name] for name in OWN if row.get(name) is not None}
    columns = {**known, "prompt": [dict(message) for message in known.pop("raw_prompt", ())]}
    if lacking := VERL.lacking(columns):
        raise RecipeError(f"a row of verl's data set lacks {', '.join(lacking)}: see docs/training/verl.md")
    try:
        return VERL.read(columns)
    except ColumnError as misfit:
        raise RecipeError(f"a row of verl's data set, {row.get('extra_info')}: {misfit}") from None


def _id(read: Item) -> str:
    return read.id or f"{read.source or 'verl'}/{question_key(read.question)[:12]}"
