"""Check of a file of tasks before training: counts, places and samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from retcon.core.errors import MissingExtra, RetconError
from retcon.core.seeds import derive
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.load import Placed, ambiguous, has_tests, in_words, load, unreadable
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.grading.registry import check_grader, needed_settings
from retcon.tasks.types import Task

SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt lengths in `unit`: system prompt, earlier messages and question, without the template. most: the 95th
    percentile. longest_at: file and line."""

    unit: str
    shortest: int
    median: int
    most: int
    longest: int
    longest_at: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A task with its file and line."""

    where: str
    id: str
    question: str
    answer: str
    grader: str


@dataclass(frozen=True, slots=True)
class Report:
    """Findings in one source of tasks.

    asked_with: rows by the further columns that their questions come from. dropped: rows that are left out, by reason;
    where_dropped: the first places of each. conflicting: pairs of places with one question and two answers. unreadable:
    (place, answer, why). in_words: (place, answer), graded by `math` though they are words; tested: whether one of
    these rows has tests. ambiguous: (place, answer, how it is read). overlap: (place, what it repeats, rule). not_read:
    why unreadable answers could not be searched for, else "". unready: grader to the reason why it is unavailable.
    unset: grader to its settings without a default, which `task.graders` must give.
    """

    path: str
    convention: str
    columns: Sequence[str]
    rows: int
    asked_with: dict[str, int]
    kept: int
    dropped: dict[str, int]
    where_dropped: dict[str, list[str]]
    conflicting: Sequence[tuple[str, str]]
    graders: dict[str, int]
    lengths: Lengths
    unreadable: Sequence[tuple[str, str, str]]
    in_words: Sequence[tuple[str, str]]
    tested: bool
    ambiguous: Sequence[tuple[str, str, str]]
    overlap: Sequence[tuple[str, str, str]]
    samples: Sequence[Sample]
    fingerprint: str
    not_read: str = ""
    unready: dict[str, str] = field(default_factory=dict)
    unset: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Return whether all kept tasks are usable, given the `unset` settings."""
        return not self.unreadable and not self.overlap and not self.unready

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return asdict(self)


def check(settings: FileTaskSettings, count: Callable[[str], int] | None = None, unit: str = "tokens") -> Report:
    """Check the one source that the settings name.

    count: length of a text in `unit`; characters where None. Raises as `FileTaskSettings.open`, except for overlap and
    dropped rows; DataError for a source without rows; SandboxUnavailable where answers in mathematics need a missing
    sandbox. Without Math-Verify these are not read, which the report says.
    """
    loaded = load(settings)
    source = loaded.sources[0]
    if source.tasks is not None:
        raise DataError(f"{settings.path} is a task set of its own, not rows: there is nothing to check in it")
    tasks = loaded.tasks()  # raises if no row is left
    placed = [*source.train, *source.evaluation]
    unread = {one.task.id: one.unread for one in placed if one.unread}
    not_read = ""
    try:
        unread |= {task.id: why for task, why in unreadable(one.task for one in placed if not one.unread)}
    except MissingExtra as missing:
        not_read = str(missing)
    graders = Counter(str(one.task.meta["grader"]) for one in placed)
    unset = {name: needed for name in graders if ":" not in name and (needed := needed_settings(name))}
    words = [one for one in placed if in_words(one.task)]
    chosen = sorted(placed, key=lambda one: derive("sample", one.task.id))[:SAMPLES]
    return Report(
        path=settings.path,
        convention=source.convention,
        columns=source.columns,
        rows=source.rows,
        asked_with=dict(source.asked_with.most_common()),
        kept=len(placed),
        dropped=dict(source.dropped.most_common()),
        where_dropped=source.where_dropped,
        conflicting=source.conflicting,
        graders=dict(graders.most_common()),
        lengths=_lengths(placed, count or len, unit if count else "characters"),
        unreadable=[(one.where, one.shown, unread[one.task.id]) for one in placed if one.task.id in unread],
        in_words=[(one.where, one.task.answer) for one in words],
        tested=any(has_tests(one.task) for one in words),
        ambiguous=[(one.where, one.task.answer, how) for one in placed if (how := ambiguous(one.task))],
        overlap=[(where, match.evaluation, match.rule) for where, match in loaded.overlaps],
        samples=[_sample(one) for one in chosen],
        fingerprint=tasks.fingerprint,
        not_read=not_read,
        unready={name: why for name in graders if name not in unset and (why := _unready(name))},
        unset=unset,
    )


def _unready(grader: str) -> str:
    """Return why a grader is unavailable here, or ""; a missing package is reported as `not_read`."""
    try:
        check_grader(grader, {}, "task.graders")
    except MissingExtra:
        return ""
    except RetconError as error:
        return str(error)
    return ""


def _lengths(placed: Sequence[Placed], count: Callable[[str], int], unit: str) -> Lengths:
    found = sorted((sum(map(count, _prompt_texts(one.task))), one.where) for one in placed)
    last = len(found) - 1
    return Lengths(unit, found[0][0], found[last // 2][0], found[int(last * 0.95)][0], *found[last])


def _prompt_texts(task: Task) -> list[str]:
    return [task.system or "", *(text for _, text in task.before), task.question]


def _sample(one: Placed) -> Sample:
    task = one.task
    return Sample(one.where, task.id, task.question, task.answer, str(task.meta["grader"]))
