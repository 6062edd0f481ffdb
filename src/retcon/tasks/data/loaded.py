"""Sources that were read, before they are a task set: what became of their rows, and what they are told by."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from retcon.core.errors import TaskWarning
from retcon.core.texts import counted
from retcon.tasks.checked import training_tasks
from retcon.tasks.data.fields import DataError, Item
from retcon.tasks.data.grading import unread
from retcon.tasks.data.origin import Origin
from retcon.tasks.data.overlap import Match
from retcon.tasks.data.tasks import LOOK, DataTasks, Part, content
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task

if TYPE_CHECKING:
    from retcon.tasks.data.settings import FileTaskSettings, TaskSource

Role = Literal["train", "evaluation"]
CHOICE = "choice"
SHOWN = 20
"""Places of what was dropped that are kept, of each reason."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A task, and the file and line that it stands in. same: its question's `text.key`. unread, bare: as in `Item`.
    said: so too, where a letter is what is graded."""

    task: Task
    where: str
    same: str
    unread: str = ""
    said: str = ""
    bare: str = ""

    @property
    def compared(self) -> str:
        """What other questions may overlap with: words of ours would make short ones alike."""
        return self.bare or self.task.question

    @property
    def shown(self) -> str:
        """The answer as whoever looks for it finds it in the file."""
        return self.said or self.task.answer


@dataclass(slots=True)
class ReadSource:
    """A source and what became of its rows.

    dropped: rows by reason; where_dropped: the first places of each. conflicting: (place, first place) of dropped
    duplicates that have another answer.
    asked_with: rows by the columns that their questions also come from. named_by: how the first row that tells names
    options (`Item`), and its place.
    """

    settings: TaskSource
    origin: Origin
    name: str
    convention: str = ""
    columns: tuple[str, ...] = ()
    rows: int = 0
    train: list[Placed] = field(default_factory=list)
    evaluation: list[Placed] = field(default_factory=list)
    tasks: TaskSet | None = None
    dropped: Counter[str] = field(default_factory=Counter)
    where_dropped: dict[str, list[str]] = field(default_factory=dict)
    conflicting: list[tuple[str, str]] = field(default_factory=list)
    asked_with: Counter[str] = field(default_factory=Counter)
    named_by: tuple[str, str] = ("", "")

    def unread(self, item: Item, grader: str, where: str) -> str:
        """Why the grader cannot read a row's answer, "" where it can: options are named in one way throughout."""
        if grader == CHOICE and item.named_by:
            self.named_by = self.named_by if self.named_by[0] else (item.named_by, where)
            if self.named_by[0] != item.named_by:
                return (f"it is an option's {item.named_by}, where {self.named_by[1]} has an option's "
                        f"{self.named_by[0]}: write letters, A, B, …")  # fmt: skip
        return (item.unread if grader == CHOICE else "") or unread(grader, item)

    def drop(self, reason: str, where: str) -> None:
        self.dropped[reason] += 1
        places = self.where_dropped.setdefault(reason, [])
        if len(places) < SHOWN:
            places.append(where)

    def identity(self) -> dict[str, Any]:
        """JSON types."""
        if self.tasks is not None:
            tasks = [content(task) for _, task in zip(range(LOOK), training_tasks(self.tasks, 0), strict=False)]
            return {"path": self.settings.path, "origin": self.origin, "weight": self.settings.weight,
                    "content": _combined(tasks)}  # fmt: skip
        kept = [*self.train, *self.evaluation]
        train, evaluation = ([content(p.task) for p in placed] for placed in (self.train, self.evaluation))
        about = self.settings.model_dump(include={"path", "columns", "split", "subset", "revision", "weight"})
        return {
            **{name: value for name, value in about.items() if value},
            "origin": self.origin, "convention": self.convention, "rows": self.rows, "train": len(self.train),
            "evaluation": len(self.evaluation), "dropped": dict(sorted(self.dropped.items())),
            "graders": dict(sorted(Counter(str(p.task.meta["grader"]) for p in kept).items())),
            "content": _combined([_combined(train), f"evaluation {_combined(evaluation)}"]),
        }  # fmt: skip


@dataclass(slots=True)
class Loaded:
    """All sources, read. overlaps: (place, match) of training tasks that repeat what evaluation asks, found and not
    dropped."""

    settings: FileTaskSettings
    sources: list[ReadSource]
    overlaps: list[tuple[str, Match]] = field(default_factory=list)

    def refuse_overlap(self) -> None:
        """Raises DataError where there is overlap that the settings do not allow."""
        if not self.overlaps or self.settings.overlap != "refuse":
            return
        told = [f"{where}: {_told(match)}" for where, match in self.overlaps[:3]]
        raise DataError(
            f"{len(self.overlaps)} training tasks overlap with evaluation:\n  " + "\n  ".join(told)
            + '\noverlap = "drop" leaves them out, "allow" trains on them'
        )  # fmt: skip

    def refuse_unread(self) -> None:
        """Raises DataError where an answer cannot be read, and that takes no sandbox to tell."""
        wrong = [one for source in self.sources for one in (*source.train, *source.evaluation) if one.unread]
        if wrong:
            told = [f"{one.where}: {f'{one.shown!r:.40}: ' if one.shown else ''}{one.unread}"
                    for one in wrong[:3]]  # fmt: skip
            raise DataError(f"{counted(len(wrong), 'answer')} that no grader can read:\n  " + "\n  ".join(told))

    def warn_of_drops(self) -> None:
        """Warns (TaskWarning) of what was dropped, one line a source."""
        for source in self.sources:
            if source.dropped:
                kept = len(source.train) + len(source.evaluation)
                reasons = ", ".join(f"{count} {reason}" for reason, count in source.dropped.most_common())
                line = f"{source.settings.path}: {kept} of {source.rows} rows are used; left out: {reasons}"
                warnings.warn(line, TaskWarning, stacklevel=3)

    def tasks(self) -> DataTasks:
        """Raises DataError where there is no task at all."""
        parts = _parts(self.sources)
        held_out = tuple(p.task for source in self.sources for p in source.evaluation)
        if not parts and not held_out:
            said = "; ".join(f"{n} {r}" for s in self.sources for r, n in s.dropped.items())
            raise DataError(f"{self.sources[0].settings.path}: no row can be used: {said}")
        name = (
            self.settings.name
            or "+".join(dict.fromkeys(s.name for s in self.sources if s.train or s.tasks))
            or "+".join(dict.fromkeys(s.name for s in self.sources))
        )
        sources = [source.identity() for source in self.sources]
        made_of = [
            name,
            str(self.settings.system),
            *(f"{s['content']} {s.get('weight')}" for s in sources),
        ]
        system = self.settings.system or None
        about = self.settings.model_dump(include={"evaluation_share", "duplicates", "overlap", "max_prompt_tokens"})
        identity = {"name": name, "fingerprint": _combined(made_of)[:16], **about, "sources": sources}
        return DataTasks(name, system, parts, held_out, identity)


def _parts(sources: Iterable[ReadSource]) -> tuple[Part, ...]:
    """Those that train. Task sets of one name are told apart by their paths: each grades its own tasks."""
    named: dict[str, str] = {}
    found: list[Part] = []
    for source in sources:
        if source.tasks is None:
            if source.train:
                found.append(Part(source.name, tuple(p.task for p in source.train), source.settings.weight))
            continue
        path = source.settings.path
        taken = named.setdefault(source.name, path) != path
        found.append(Part(f"{source.name} ({path})" if taken else source.name, source.tasks, source.settings.weight))
    return tuple(found)


def _told(match: Match) -> str:
    if match.rule == "same":
        return f"the same as {match.evaluation}"
    return f"{match.share:.0%} of {match.evaluation} stands in it (runs of 13 words)"


def _combined(hashes: Iterable[str]) -> str:
    """Of several hashes, whatever their order."""
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()
