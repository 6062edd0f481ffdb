"""What graders make of tasks before any rollout: graders that are unknown, and answers that none can read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from retcon.core.errors import RecipeError
from retcon.tasks.data.fields import DataError, Item, empty
from retcon.tasks.data.programs import CODE
from retcon.tasks.grading.cases import PLACES, is_tests
from retcon.tasks.grading.registry import Kind, kind_of
from retcon.tasks.types import Task

OF_TEXTS = ("math", "exact", "choice")
"""Graders of answers in words, numbers and letters, to which tests say nothing."""


def refuse_unknown(grader: str, where: str) -> None:
    """Raises DataError where there is no such grader; import paths are taken as they are."""
    try:
        kind_of(grader)
    except RecipeError as error:
        raise DataError(f"{where}: {error}") from None


def graded_item(item: Item, given: str, usual: str) -> tuple[Item, str]:
    """An item with its answer to the grader that it is graded by, and that grader: the one that it names, else the one
    that is `given` for those that name none, else its convention's `usual` one. Tests in the answer's place are graded
    by `code` where what is given compares texts."""
    if not item.cases:
        return item, item.grader or given or usual
    grader = item.grader or (given if given not in OF_TEXTS else "") or CODE
    return (item if grader in (CODE, *OF_TEXTS) else replace(item, answer=item.cases)), grader


def is_answered(item: Item | Task, grader: str) -> bool:
    """Whether an item has what its grader compares replies with: an answer, or tests where it may look at them."""
    return (grader != CODE and bool(item.answer)) or (grader not in OF_TEXTS and has_tests(item))


def has_tests(item: Item | Task) -> bool:
    """Whether there is anything to run an answer's program against."""
    return is_tests(item.answer) or any(not empty(item.meta.get(name)) for name in PLACES)


def in_words(task: Task) -> bool:
    """Whether the task's grader takes its answer, which is in words, for something else."""
    kind = _kind(task)
    return kind is not None and kind.in_words is not None and kind.in_words(task.answer)


def ambiguous(task: Task) -> str:
    """How the task's grader reads its answer where that may mean something else, "" where it may not."""
    kind = _kind(task)
    return "" if kind is None or kind.ambiguous is None else kind.ambiguous(task.answer)


def unread(grader: str, item: Item) -> str:
    """Why a grader could compare nothing with an item's answer or tests, "" where it could, or takes a sandbox to
    tell."""
    kind = kind_of(grader)
    try:
        if kind.read is not None:
            kind.read(item.answer, item.meta)
    except ValueError as error:
        return str(error)
    return ""


def unreadable(tasks: Iterable[Task]) -> list[tuple[Task, str]]:
    """The tasks whose answers their grader could compare nothing with, and why, in their order, but for what `unread`
    tells. Raises MissingExtra and SandboxUnavailable where a grader cannot read answers without."""
    kept = [(task, kind) for task in tasks if (kind := _kind(task)) is not None]
    answers: dict[str, list[str]] = {}
    for task, kind in kept:
        answers.setdefault(kind.name, []).append(task.answer)
    reads = {kind.name: kind.unreadable for _, kind in kept if kind.unreadable is not None}
    why = {name: read(answers[name]) for name, read in reads.items()}
    found = [(task, why.get(kind.name, {}).get(task.answer)) for task, kind in kept]
    return [(task, reason) for task, reason in found if reason is not None]


def _kind(task: Task) -> Kind | None:
    name = task.meta.get("grader")
    return kind_of(name) if isinstance(name, str) else None
