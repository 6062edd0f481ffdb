"""From settings to tasks: every row is read, named, and kept or dropped for a reason that is counted.

row → columns as mapped → convention → split → has it an answer → seen before → fits the limit → overlaps
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.core.errors import TaskWarning, nearest
from retcon.tasks.data.conventions import ASKED, QUESTIONS, Convention, Untold, named, others, recognised
from retcon.tasks.data.fields import Columns, DataError, Item, Misfit, Row, marks
from retcon.tasks.data.files.rows import files_of, mapped, read_rows, split_of
from retcon.tasks.data.grading import graded_item, is_answered, refuse_unknown
from retcon.tasks.data.loaded import CHOICE, Loaded, Placed, ReadSource, Role
from retcon.tasks.data.origin import imported_tasks, origin_of, short_name
from retcon.tasks.data.overlap import EvaluationIndex
from retcon.tasks.data.packaged.saved import folder_of, has_splits
from retcon.tasks.data.packaged.splits import TRAIN, Splits, splits_of
from retcon.tasks.data.programs import CODE
from retcon.tasks.data.text import NAMED, key
from retcon.tasks.registry import CountTokens, TaskSet, Ungraded, grader_options, task_set
from retcon.tasks.types import Task

if TYPE_CHECKING:
    from retcon.tasks.data.settings import FileTaskSettings, TaskSource

_ASKED = ("question", "context", "input")
"""What `columns` may map that is asked."""
MOST_ANSWER = 20_000
MOST_QUESTION = 1_000_000
"""Characters. What is longer is no answer or question, but a column that was mistaken for one."""


def load(settings: FileTaskSettings, count_tokens: CountTokens | None = None) -> Loaded:
    """Reads all sources. See `FileTaskSettings.open` for what it raises, but for overlap, which is noted."""
    if settings.max_prompt_tokens and count_tokens is None:
        raise DataError(
            f"max_prompt_tokens = {settings.max_prompt_tokens}: prompts are counted in the model's tokens, and there "
            "is no tokenizer here: give count_tokens, or leave it 0"
        )
    loader = _Loader(settings, count_tokens)
    sources = [loader.read(source, "train") for source in settings.each()]
    if settings.evaluation_path:
        sources.append(loader.read(settings.source(settings.evaluation_path), "evaluation"))
    for read in sources:
        if read.tasks is not None and len(sources) > 1 and not read.settings.weight:
            raise DataError(f"{read.settings.path}: a task set may be endless: give every source a weight to mix it")
    loader.warn_of_idle_marks()
    _warn_of_idle_keys(sources)
    loaded = Loaded(settings, sources)
    _find_overlap(loaded)
    return loaded


def _warn_of_idle_keys(sources: Sequence[ReadSource]) -> None:
    """Tells what is said of a data set of the hub and concerns none of the sources (TaskWarning)."""
    for name in ("subset", "revision"):
        told = {"", *(getattr(read.settings, name) for read in sources if read.origin == "hub")}
        for read in sources:
            if (value := getattr(read.settings, name)) not in told:
                idle = f"task.{name} = '{value}' (of `retcon data`: --{name}) does nothing"
                warnings.warn(f"{idle}: {read.settings.path} is no data set of the hub", TaskWarning, stacklevel=3)
                told.add(value)


class _Loader:
    """Reads sources one after another; what came before is known."""

    def __init__(self, settings: FileTaskSettings, count_tokens: CountTokens | None) -> None:
        self._settings, self._count_tokens = settings, count_tokens
        self._by_hash = not (settings.evaluation_path or settings.evaluation_split)
        self._measures = self._by_hash and settings.evaluation_share == 1
        self._seen: dict[tuple[Role, str, str], tuple[str, str]] = {}  # by question and what is said before it
        self._ids: set[str] = set()
        self._made: Counter[str] = Counter()
        self._columns: dict[str, None] = {}  # of all rows, in their order

    def warn_of_idle_marks(self) -> None:
        """Tells of a column of marks, other than the usual one, that no row has (TaskWarning): of several files, as of
        stages, one may be marked and another not."""
        usual = type(self._settings).model_fields["marked"].default
        for name in self._settings.marked:
            if name not in self._columns and name not in usual and self._columns:
                close, there = nearest(name, self._columns), ", ".join(self._columns)
                told = f"task.marked: no row of {self._settings.name or 'the tasks'} has a column '{name}'{close}"
                warnings.warn(f"{told}, which leaves out none; there are: {there}", TaskWarning, stacklevel=3)

    def _warn_of_idle_grading(self, path: str, tasks: TaskSet) -> None:
        """Tells of a task set of files within this one that would be graded otherwise alone (TaskWarning)."""
        if not isinstance(tasks, Ungraded):
            return
        own: dict[str, tuple[object, object]] = {"graders": (dict(grader_options(tasks)), {}),
                                                 "rewards": (tasks.rewards, "signed")}  # fmt: skip
        idle = [
            f"{name} = {value!r}"
            for name, (value, usual) in own.items()
            if value not in (usual, getattr(self._settings, name))
        ]
        if idle:
            told = f"{path}: its own {' and '.join(idle)} do nothing: as a source it is graded as the recipe says"
            warnings.warn(f"{told} (task.graders, task.rewards)", TaskWarning, stacklevel=3)

    def read(self, source: TaskSource, role: Role) -> ReadSource:
        """role: what the source is for; rows of a source that trains may be for evaluation all the same."""
        origin = origin_of(source.path)
        if origin in ("family", "import"):
            if role == "evaluation":
                raise DataError(f"evaluation_path = {source.path}: it is a task set of its own; name rows (a file)")
            tasks = task_set(source.path) if origin == "family" else imported_tasks(source.path)
            self._warn_of_idle_grading(source.path, tasks)
            return ReadSource(source, origin, tasks.name, tasks=tasks)
        splits = splits_of(source, origin)
        if splits is not None and self._measures and role == "train" and not source.split:
            source = _measured(source, splits)
        alone = self._settings.name if source.path == self._settings.path else ""
        read = ReadSource(source, origin, alone or short_name(source.path))
        if source.grader:
            refuse_unknown(source.grader, "task.grader")
        convention = named(source.format) if source.format != "auto" else None
        untold: Untold | None = None
        for row, row_role in self._rows(source, role, splits):
            read.rows += 1
            columns = mapped(row, source.columns)
            if source.options_seed:
                columns = {"options_seed": source.options_seed, **columns}
            self._columns.update(dict.fromkeys((*row.columns, *columns)))
            if convention is None:
                try:
                    convention = recognised(columns, row.where, source.columns)
                except Untold as error:
                    untold = untold or error
                    read.drop("without tests" if row_role else "of another split", row.where)
                    continue
            if not read.columns:
                read.columns, read.convention = tuple(row.columns), convention.name
            if row_role is None:
                read.drop("of another split", row.where)
            else:
                self._take(read, row, columns, convention, row_role)
        if convention is None and untold is not None:
            raise untold
        return read

    def _rows(self, source: TaskSource, role: Role, splits: Splits | None) -> Iterator[tuple[Row, Role | None]]:
        """The rows, each with what it is for, None for nothing. splits: where those of one split can be had alone.
        Raises DataError where a split has no row."""
        wanted: dict[str, Role] = {}
        if source.split and role == "train":
            wanted[source.split] = role
        if self._settings.evaluation_split and (role == "evaluation" or not self._settings.evaluation_path):
            wanted[self._settings.evaluation_split] = "evaluation"
        if splits is not None:
            if not source.split and role == "train":
                wanted = {TRAIN: role, **wanted}
            for split, of_split in (wanted or {"test": role}).items():
                for row in splits.rows(split):
                    yield row, of_split
            return
        rest = None if source.split or role == "evaluation" else role
        found: Counter[str] = Counter()
        for row in read_rows(Path(source.path)):
            if not wanted:
                yield row, role
                continue
            split = split_of(row, source.columns)
            found[split] += 1
            yield row, wanted.get(split, rest)
        for split in wanted:
            if split not in found:
                there = [name for name, _ in found.most_common(8)]
                close = nearest(split, there)
                raise DataError(f"{source.path}: no row of split '{split}'{close}; there are: {', '.join(there)}")

    def _take(self, read: ReadSource, row: Row, columns: Columns, convention: Convention, role: Role) -> None:
        item, grader = graded_item(_item(row, columns, convention), read.settings.grader, convention.grader)
        _refuse_huge(item, row, grader)
        read.asked_with.update(item.asked_with)
        if item.grader:
            refuse_unknown(item.grader, row.where)
        if any(marks(columns.get(name, row.columns.get(name))) for name in self._settings.marked):
            return read.drop("marked to be left out", row.where)
        if not item.question.strip():
            return read.drop("without a question", row.where)
        if not is_answered(item, grader):
            return read.drop("without tests" if grader == CODE else "without an answer", row.where)
        same = key(item.question)
        if self._settings.duplicates == "drop":
            asked = role, same, key("\n".join(text for _, text in item.before)) if item.before else ""
            if (first := self._seen.get(asked)) is not None:
                if first[1] != item.answer:
                    read.conflicting.append((row.where, first[0]))
                return read.drop("the same as one before", row.where)
            self._seen[asked] = (row.where, item.answer)
        task = self._task(read, item, grader, same)
        limit = self._settings.max_prompt_tokens
        whole = task if task.system is not None else replace(task, system=self._settings.system or None)
        if limit and self._count_tokens is not None and self._count_tokens(whole) > limit:
            return read.drop("over max_prompt_tokens", row.where)
        held = role == "evaluation" or (self._by_hash and held_out(same, self._settings.evaluation_share))
        (read.evaluation if held else read.train).append(
            Placed(
                task,
                row.where,
                same,
                read.unread(item, grader, row.where),
                item.said if grader == CHOICE else "",
                item.bare,
            )
        )
        return None

    def _task(self, read: ReadSource, item: Item, grader: str, same: str) -> Task:
        name = read.name
        id = item.id if item.id.startswith(f"{name}/") else f"{name}/{item.id}" if item.id else ""
        if not id or id in self._ids:
            made = f"{name}/{same[:NAMED]}"
            while (id := f"{made}-{self._made[made]}" if self._made[made] else made) in self._ids:
                self._made[made] += 1
        self._ids.add(id)
        meta: Mapping[str, object] = {**item.meta, "grader": grader}
        for about, value in (("source", item.source), ("reference", item.reference)):
            if value:
                meta = {**meta, about: value}
        return Task(id, item.question, item.answer, item.system, meta, item.before)


def _item(row: Row, columns: Columns, convention: Convention, *, asked: bool = False) -> Item:
    """A row, read. A needed column that it leaves out, and rows before it have, is as null. asked: only the question
    counts, by whatever name. Raises DataError where another column may be meant, or it has nothing that the convention
    needs."""
    lacking = convention.lacking(columns)
    if asked and ASKED.has(columns) and any(not set(QUESTIONS).isdisjoint(need.split("|")) for need in lacking):
        convention, lacking = ASKED, []  # which reads a question by any of its names
    for need in lacking:
        names = need.split("|")
        counts = not asked or not set(QUESTIONS).isdisjoint(names)
        meant = others(names, row.new) or convention.nearest(need, row.new)
        if (counts and (meant or row.before.isdisjoint(names))) or len(lacking) == len(convention.needs):
            raise _lacks(row, columns, convention, need)
    try:
        return convention.read({**columns, **{need.partition("|")[0]: None for need in lacking}})
    except Misfit as misfit:
        for need in lacking:
            if misfit.column in need.split("|"):
                raise _lacks(row, columns, convention, need) from None
        raise DataError(f"{row.where}: {misfit} (read as {convention.name})") from None


def _lacks(row: Row, columns: Columns, convention: Convention, need: str) -> DataError:
    lacked = f"{need.replace('|', ' or ')}{convention.nearest(need, columns)}"
    return DataError(
        f"{row.where}: lacks column {lacked}, which rows of {convention.name} have; it has: {', '.join(columns)}"
    )


def _measured(source: TaskSource, splits: Splits) -> TaskSource:
    """A source that a model is measured on, and whose split nobody named: which it is then is told (TaskWarning)."""
    split = splits.measured
    if len(splits.names) > 1:
        told = f"{source.path}: its split '{split}' is evaluated on, of {', '.join(splits.names)}"
        warnings.warn(f"{told}: task.split names another", TaskWarning, stacklevel=2)
    return source if split == TRAIN else source.model_copy(update={"split": split})


def held_out(same: str, share: float) -> bool:
    """Whether the question with this key is evaluated on: a share of all questions, the same ones everywhere."""
    return int(hashlib.sha256(f"split {same}".encode()).hexdigest()[:15], 16) < share * 16**15


def _find_overlap(loaded: Loaded) -> None:
    settings = loaded.settings
    if settings.overlap == "allow":
        return
    own = [(p.where, p.compared) for source in loaded.sources for p in source.evaluation]
    chosen = bool(settings.evaluation_path or settings.evaluation_split)
    columns = [settings.columns, *(source.settings.columns for source in loaded.sources)]
    others = [pair for path in settings.against for pair in questions_of(path, columns)]
    named_index = EvaluationIndex([*(own if chosen else ()), *others])
    drawn_index = EvaluationIndex(() if chosen else own)
    for source in loaded.sources:
        kept = []
        for placed in source.train:
            same = "" if placed.bare else placed.same
            if (match := named_index.match(placed.compared, same)) is not None:
                if settings.overlap == "drop":
                    source.drop("overlapping with evaluation", placed.where)
                    continue
                loaded.overlaps.append((placed.where, match))
            if drawn_index.match(placed.compared, same) is not None:
                source.drop("too like what is held out", placed.where)
                continue
            kept.append(placed)
        source.train = kept


def questions_of(path: str, columns: Sequence[Mapping[str, str]] = ()) -> Iterator[tuple[str, str]]:
    """(place, question) of all rows of an evaluation, without words of ours, each of its files read by its own columns.
    columns: as in the settings, of the tasks that it is held against: the first that fit where its own are of no
    convention. Raises DataError."""
    if not path:
        raise DataError("against: an empty name names no file")
    for file in files_of(folder_of(Path(path), "test") if has_splits(Path(path)) else Path(path)):
        convention: Convention | None = None
        own: Mapping[str, str] = {}
        for row in read_rows(file):
            if convention is None:
                convention, own = _recognised_by_any(row, columns)
            item = _item(row, mapped(row, own), convention, asked=True)
            yield row.where, item.bare or item.question


def _recognised_by_any(row: Row, columns: Sequence[Mapping[str, str]]) -> tuple[Convention, Mapping[str, str]]:
    """The convention of a row, and by which of these, or by none. Of one that only asks: as with an answer, and its
    question is what the first of these that fits says. Raises DataError."""
    try:
        return recognised(row.columns, row.where, {}), {}
    except DataError:
        for one in columns:
            with suppress(DataError):
                return recognised(mapped(row, one), row.where, one), one
        for one in (*(one for one in columns if "question" in one), {}):
            asked = {name: column for name, column in one.items() if name in _ASKED}
            with suppress(DataError):
                return recognised({**mapped(row, asked), "answer": None}, row.where, asked), asked
        raise


def _refuse_huge(item: Item, row: Row, grader: str) -> None:
    """Tests, which may be the answer, may have any length."""
    answers = () if grader == CODE or item.cases else (("answer", item.answer, MOST_ANSWER),)
    for column, value, most in (*answers, ("question", item.question, MOST_QUESTION)):
        if len(value) > most:
            raise DataError(
                f"{row.where}: its {column} has {len(value):,} characters, {most:,} at most: is another column meant? "
                f"It has: {', '.join(row.columns)}"
            )
