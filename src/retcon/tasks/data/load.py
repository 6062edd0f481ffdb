"""Loader of tasks: every row is read, named, and kept or dropped for a counted reason.

row → columns as mapped → convention → split → has an answer → duplicate → fits the limit → overlaps
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from retcon.core.errors import RecipeError, TaskWarning, nearest
from retcon.core.texts import counted
from retcon.tasks.benchmarks import fill_prompt, resolve
from retcon.tasks.data.conventions import (
    APART,
    CODE,
    PLAIN,
    QUESTIONS,
    Convention,
    UndecidedConvention,
    equivalent_columns,
    find_convention,
    recognise,
)
from retcon.tasks.data.fields import (
    NAMED,
    ColumnError,
    Columns,
    DataError,
    Item,
    Row,
    is_empty,
    is_marked,
    question_key,
    split_words,
)
from retcon.tasks.data.rows import (
    TRAIN,
    Origin,
    Splits,
    files_of,
    folder_of,
    has_splits,
    import_tasks,
    map_columns,
    origin_of,
    read_rows,
    short_name,
    split_of,
    splits_of,
)
from retcon.tasks.data.tasks import LOOK, DataTasks, Part, hash_task
from retcon.tasks.grading.cases import PLACES, is_tests
from retcon.tasks.grading.registry import Kind, kind_of
from retcon.tasks.registry import CountTokens, TaskSet, task_set, training_tasks
from retcon.tasks.types import Task

if TYPE_CHECKING:
    from retcon.tasks.data.settings import FileTaskSettings, TaskSource

# Training questions that repeat questions of an evaluation, by one of two rules:
#
# same      the canonical text is the same (`fields.canonicalize`).
# 13-gram   more than half of the evaluation question's words stand in runs of 13 words that the one training question
#           has too. Words are lower-case runs of letters and digits, drawings left out. 13 words, and ignoring runs in
#           more than 10 places, are GPT-3's (arXiv 2005.14165, appendix C); "more than half of it, by a single training
#           instance" is Tülu 3's (arXiv 2411.15124, section 3.2), which takes runs of 8. A question of fewer words has
#           no runs.

RUN = 13
MOST_PLACES = 10
SHARE = 0.5

Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """A repeated evaluation question. evaluation: its name. share: of its words, 1 where the text is the same."""

    rule: Literal["same", "13-gram"]
    evaluation: str
    share: float


class EvaluationIndex:
    """Index of evaluation questions for look-ups of training questions. questions: (name, question); building it and
    each look-up take linear time in the text."""

    def __init__(self, questions: Iterable[tuple[str, str]]) -> None:
        self._same: dict[str, str] = {}
        self._names: list[str] = []
        self._lengths: list[int] = []
        places: defaultdict[Gram, list[tuple[int, int]]] = defaultdict(list)
        for name, question in questions:
            same = question_key(question)
            if same in self._same:
                continue
            self._same[same] = name
            found = split_words(question)
            for start, gram in enumerate(_grams(found)):
                if len(places[gram]) <= MOST_PLACES:
                    places[gram].append((len(self._names), start))
            self._names.append(name)
            self._lengths.append(len(found))
        self._places = {gram: there for gram, there in places.items() if len(there) <= MOST_PLACES}

    def __len__(self) -> int:
        """Count the different questions."""
        return len(self._names)

    def match(self, question: str, same: str = "") -> Match | None:
        """Find the evaluation question that a training question repeats most, or None. same: its `question_key`, where
        known."""
        if self._names and (name := self._same.get(same or question_key(question))) is not None:
            return Match("same", name, 1.0)
        if not self._places:
            return None
        begun: defaultdict[int, set[int]] = defaultdict(set)
        for gram in set(_grams(split_words(question))):
            for evaluation, start in self._places.get(gram, ()):
                begun[evaluation].add(start)
        best = max(((_covered(starts) / self._lengths[n], n) for n, starts in begun.items()), default=(0.0, 0))
        return Match("13-gram", self._names[best[1]], best[0]) if best[0] > SHARE else None


def _grams(found: list[str]) -> Iterable[Gram]:
    return (tuple(found[n : n + RUN]) for n in range(len(found) - RUN + 1))


def _covered(starts: set[int]) -> int:
    """Count the words that runs from these places cover."""
    total, end = 0, 0
    for start in sorted(starts):
        total += start + RUN - max(start, end)
        end = start + RUN
    return total


OF_TEXTS = ("math", "exact", "choice")
"""Graders of answers in words, numbers and letters, which ignore tests."""


def check_grader_name(grader: str, where: str) -> None:
    """Raise DataError for an unknown grader; import paths are not checked."""
    try:
        kind_of(grader)
    except RecipeError as error:
        raise DataError(f"{where}: {error}") from None


def choose_grader(item: Item, given: str, usual: str) -> tuple[Item, str]:
    """Return the item with the answer for its grader, and that grader. It is the one that the item names, else the
    `given` default, else its convention's `usual` one. Tests in the answer's place are graded by `code` where the given
    one compares texts."""
    if not item.cases:
        return item, item.grader or given or usual
    grader = item.grader or (given if given not in OF_TEXTS else "") or CODE
    return (item if grader in (CODE, *OF_TEXTS) else replace(item, answer=item.cases)), grader


def is_answered(item: Item | Task, grader: str) -> bool:
    """Return whether an item has what its grader needs: an answer, or tests."""
    return (grader != CODE and bool(item.answer)) or (grader not in OF_TEXTS and has_tests(item))


def has_tests(item: Item | Task) -> bool:
    """Return whether there are tests for an answer's program."""
    return is_tests(item.answer) or any(not is_empty(item.meta.get(name)) for name in PLACES)


def in_words(task: Task) -> bool:
    """Return whether the task's grader misreads its answer in words."""
    kind = _kind(task)
    return kind is not None and kind.in_words is not None and kind.in_words(task.answer)


def ambiguous(task: Task) -> str:
    """Return how the task's grader reads an ambiguous answer, else ""."""
    kind = _kind(task)
    return "" if kind is None or kind.ambiguous is None else kind.ambiguous(task.answer)


def unread(grader: str, item: Item) -> str:
    """Return why a grader cannot use an item, or "". That is "" also where only a sandbox could tell."""
    kind = kind_of(grader)
    try:
        if kind.read is not None:
            kind.read(item.answer, item.meta)
    except ValueError as error:
        return str(error)
    return ""


def unreadable(tasks: Iterable[Task]) -> list[tuple[Task, str]]:
    """Find tasks whose answers their grader's parser refuses, and why. In order, without those of `unread`.
    Raises MissingExtra and SandboxUnavailable where a grader needs these to read answers."""
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


Role = Literal["train", "evaluation"]
CHOICE = "choice"
SHOWN = 20
"""Places of dropped rows that are kept for each reason."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A task with its file and line. same: its `question_key`. unread, bare: those of its `Item`. raw_answer: that of
    its `Item` where a letter is graded."""

    task: Task
    where: str
    same: str
    unread: str = ""
    raw_answer: str = ""
    bare: str = ""

    @property
    def compared(self) -> str:
        """Return the question to compare. Our instructions would make short ones alike, and are left out."""
        return self.bare or self.task.question

    @property
    def shown(self) -> str:
        """Return the answer as it stands in the file."""
        return self.raw_answer or self.task.answer


@dataclass(slots=True)
class ReadSource:
    """A source with its kept and dropped rows.

    dropped: rows by reason; where_dropped: the first places of each. conflicting: (place, first place) of dropped
    duplicates that have another answer.
    asked_with: rows by the further columns that their questions come from. named_by: how the first row that decides it
    names options (`Item`), and its place.
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
        """Return why the grader cannot read a row's answer, or ""; all rows must name options in one way."""
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
        """Describe the source for the run manifest, as JSON types."""
        if self.tasks is not None:
            tasks = [hash_task(task) for _, task in zip(range(LOOK), training_tasks(self.tasks, 0), strict=False)]
            return {"path": self.settings.path, "origin": self.origin, "weight": self.settings.weight,
                    "content": _combined(tasks)}  # fmt: skip
        kept = [*self.train, *self.evaluation]
        train, evaluation = ([hash_task(p.task) for p in placed] for placed in (self.train, self.evaluation))
        about = self.settings.model_dump(
            include={"path", "columns", "split", "subset", "revision", "weight", "benchmark", "prompt"}
        )
        return {
            **{name: value for name, value in about.items() if value},
            "origin": self.origin, "convention": self.convention, "rows": self.rows, "train": len(self.train),
            "evaluation": len(self.evaluation), "dropped": dict(sorted(self.dropped.items())),
            "graders": dict(sorted(Counter(str(p.task.meta["grader"]) for p in kept).items())),
            "content": _combined([_combined(train), f"evaluation {_combined(evaluation)}"]),
        }  # fmt: skip


@dataclass(slots=True)
class Loaded:
    """All sources as read. overlaps: (place, match) of training tasks that repeat evaluation questions and were not
    dropped."""

    settings: FileTaskSettings
    sources: list[ReadSource]
    overlaps: list[tuple[str, Match]] = field(default_factory=list)

    def check_overlap(self) -> None:
        """Raise DataError for overlap that the settings do not allow."""
        if not self.overlaps or self.settings.overlap != "refuse":
            return
        lines = [f"{where}: {_describe_match(match)}" for where, match in self.overlaps[:3]]
        raise DataError(
            f"{len(self.overlaps)} training tasks overlap with evaluation:\n  " + "\n  ".join(lines)
            + '\noverlap = "drop" leaves them out, "allow" trains on them'
        )  # fmt: skip

    def check_answers(self) -> None:
        """Raise DataError for answers that are unreadable even without a sandbox's help."""
        wrong = [one for source in self.sources for one in (*source.train, *source.evaluation) if one.unread]
        if wrong:
            lines = [f"{one.where}: {f'{one.shown!r:.40}: ' if one.shown else ''}{one.unread}"
                     for one in wrong[:3]]  # fmt: skip
            raise DataError(f"{counted(len(wrong), 'answer')} that no grader can read:\n  " + "\n  ".join(lines))

    def warn_of_drops(self) -> None:
        """Warn (TaskWarning) of dropped rows, one line a source."""
        for source in self.sources:
            if source.dropped:
                kept = len(source.train) + len(source.evaluation)
                reasons = ", ".join(f"{count} {reason}" for reason, count in source.dropped.most_common())
                line = f"{source.settings.path}: {kept} of {source.rows} rows are used; left out: {reasons}"
                warnings.warn(line, TaskWarning, stacklevel=3)

    def tasks(self) -> DataTasks:
        """Build the task set. Raises DataError without any task."""
        parts = _parts(self.sources)
        held_out = tuple(p.task for source in self.sources for p in source.evaluation)
        if not parts and not held_out:
            reasons = "; ".join(f"{n} {r}" for s in self.sources for r, n in s.dropped.items())
            raise DataError(f"{self.sources[0].settings.path}: no row can be used: {reasons}")
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
    """Return the training parts. Task sets with equal names get their paths too, as each grades its own tasks."""
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


def _describe_match(match: Match) -> str:
    if match.rule == "same":
        return f"the same as {match.evaluation}"
    return f"{match.share:.0%} of {match.evaluation} stands in it (runs of 13 words)"


def _combined(hashes: Iterable[str]) -> str:
    """Hash several hashes, whatever their order."""
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()


_ASKED = ("question", "context", "input")
"""Fields of `columns` that are part of the question."""
_ONLY_ASKED = replace(PLAIN, name="asked", needs=("|".join(QUESTIONS),))
"""Reads a row with a question and no answer, such as an evaluation's; never recognised by columns."""
MOST_ANSWER = 20_000
MOST_QUESTION = 1_000_000
"""Most characters; a longer text is another column mistaken for an answer or question."""


def load(settings: FileTaskSettings, count_tokens: CountTokens | None = None) -> Loaded:
    """Read all sources. Raises as `FileTaskSettings.open`, except for overlap, which is recorded."""
    if settings.max_prompt_tokens and count_tokens is None:
        raise DataError(
            f"max_prompt_tokens = {settings.max_prompt_tokens}: prompts are counted in the model's tokens, and there "
            "is no tokenizer here: give count_tokens, or leave it 0"
        )
    loader = _Loader(settings, count_tokens)
    sources = [loader.read(source, "train") for source in settings.each()]
    if settings.evaluation_path:
        sources.append(loader.read(settings.evaluation_source(), "evaluation"))
    for read in sources:
        if read.tasks is not None and len(sources) > 1 and not read.settings.weight:
            raise DataError(f"{read.settings.path}: a task set may be endless: give every source a weight to mix it")
    loader.warn_of_idle_marks()
    _warn_of_idle_keys(sources)
    loaded = Loaded(settings, sources)
    _find_overlap(loaded)
    return loaded


def _warn_of_idle_keys(sources: Sequence[ReadSource]) -> None:
    """Warn (TaskWarning) of settings for hub data sets that no source is one of."""
    for name in ("subset", "revision"):
        known = {"", *(getattr(read.settings, name) for read in sources if read.origin == "hub")}
        for read in sources:
            if (value := getattr(read.settings, name)) not in known:
                idle = f"task.{name} = '{value}' (of `retcon data`: --{name}) does nothing"
                warnings.warn(f"{idle}: {read.settings.path} is no data set of the hub", TaskWarning, stacklevel=3)
                known.add(value)


class _Loader:
    """Reader of sources in turn, which knows the tasks of earlier ones."""

    def __init__(self, settings: FileTaskSettings, count_tokens: CountTokens | None) -> None:
        self._settings, self._count_tokens = settings, count_tokens
        self._by_hash = not (settings.evaluation_path or settings.evaluation_split)
        self._measures = self._by_hash and settings.evaluation_share == 1
        self._seen: dict[tuple[Role, str, str], tuple[str, str]] = {}  # by question and earlier messages
        self._ids: set[str] = set()
        self._made: Counter[str] = Counter()
        self._columns: dict[str, None] = {}  # of all rows, in their order

    def warn_of_idle_marks(self) -> None:
        """Warn (TaskWarning) of a non-default marking column that no row has."""
        usual = type(self._settings).model_fields["marked"].default
        for name in self._settings.marked:
            if name not in self._columns and name not in usual and self._columns:
                close, there = nearest(name, self._columns), ", ".join(self._columns)
                idle = f"task.marked: no row of {self._settings.name or 'the tasks'} has a column '{name}'{close}"
                warnings.warn(f"{idle}, which leaves out none; there are: {there}", TaskWarning, stacklevel=3)

    def read(self, source: TaskSource, role: Role) -> ReadSource:
        """Read a source. role: its use; some rows of a training source may be for evaluation."""
        source, benchmark = resolve(source)
        origin = origin_of(source.path)
        if origin in ("family", "import"):
            if role == "evaluation":
                raise DataError(f"evaluation_path = {source.path}: it is a task set of its own; name rows (a file)")
            tasks = task_set(source.path) if origin == "family" else import_tasks(source.path)
            return ReadSource(source, origin, tasks.name, tasks=tasks)
        splits = splits_of(source, origin)
        if splits is not None and self._measures and role == "train" and not source.split:
            source = _measured(source, splits)
        alone = self._settings.name if source.path == self._settings.path else ""
        read = ReadSource(source, origin, alone or source.benchmark or short_name(source.path))
        if source.grader:
            check_grader_name(source.grader, "task.grader")
        convention = find_convention(source.format) if source.format != "auto" else None
        undecided: UndecidedConvention | None = None
        for row, row_role in self._rows(source, role, splits):
            if benchmark is not None and any(row.columns.get(name) != value for name, value in benchmark.keep.items()):
                continue
            read.rows += 1
            columns = map_columns(row, source.columns)
            if source.options_seed:
                columns = {"options_seed": source.options_seed, **columns}
            self._columns.update(dict.fromkeys((*row.columns, *columns)))
            if convention is None:
                try:
                    convention = recognise(columns, row.where, source.columns)
                except UndecidedConvention as error:
                    undecided = undecided or error
                    read.drop("without tests" if row_role else "of another split", row.where)
                    continue
            if not read.columns:
                read.columns, read.convention = tuple(row.columns), convention.name
            if row_role is None:
                read.drop("of another split", row.where)
            else:
                self._take(read, row, columns, convention, row_role)
        if convention is None and undecided is not None:
            raise undecided
        if benchmark is not None and read.rows != benchmark.size:
            sizes = f"{source.path} has {counted(read.rows, 'row')}, and {benchmark.name} as published {benchmark.size}"
            warnings.warn(f"{sizes}: its results are not comparable", TaskWarning, stacklevel=2)
        return read

    def _rows(self, source: TaskSource, role: Role, splits: Splits | None) -> Iterator[tuple[Row, Role | None]]:
        """Yield the rows, each with its use, or None. splits: of a source that can be read by split. Raises DataError
        where a split has no row."""
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
        item, grader = choose_grader(_item(row, columns, convention), read.settings.grader, convention.grader)
        if prompt := read.settings.prompt:
            ask = fill_prompt(prompt, item.question, columns)
            item = replace(item, question=ask, bare=item.bare or item.question)
        _check_lengths(item, row, grader)
        read.asked_with.update(item.asked_with)
        if item.grader:
            check_grader_name(item.grader, row.where)
        if any(is_marked(columns.get(name, row.columns.get(name))) for name in self._settings.marked):
            return read.drop("marked to be left out", row.where)
        if not item.question.strip():
            return read.drop("without a question", row.where)
        if not is_answered(item, grader):
            return read.drop("without tests" if grader == CODE else "without an answer", row.where)
        same = question_key(f"{item.question}\n{item.meta[APART]}" if APART in item.meta else item.question)
        if self._settings.duplicates == "drop":
            asked = role, same, question_key("\n".join(text for _, text in item.before)) if item.before else ""
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
        held = role == "evaluation" or (self._by_hash and is_held_out(same, self._settings.evaluation_share))
        (read.evaluation if held else read.train).append(
            Placed(
                task,
                row.where,
                same,
                read.unread(item, grader, row.where),
                item.raw_answer if grader == CHOICE else "",
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
    """Read a row. A needed column that it lacks, and earlier rows have, counts as null. asked: read only the question,
    by any of its names. Raises DataError where another column may be meant, or where it lacks all columns of the
    convention."""
    lacking = convention.lacking(columns)
    if asked and _ONLY_ASKED.has(columns) and any(not set(QUESTIONS).isdisjoint(need.split("|")) for need in lacking):
        convention, lacking = _ONLY_ASKED, []  # reads a question by any of its names
    for need in lacking:
        names = need.split("|")
        counts = not asked or not set(QUESTIONS).isdisjoint(names)
        meant = equivalent_columns(names, row.new) or convention.nearest(need, row.new)
        if (counts and (meant or row.before.isdisjoint(names))) or len(lacking) == len(convention.needs):
            raise _lacks(row, columns, convention, need)
    try:
        return convention.read({**columns, **{need.partition("|")[0]: None for need in lacking}})
    except ColumnError as error:
        for need in lacking:
            if error.column in need.split("|"):
                raise _lacks(row, columns, convention, need) from None
        raise DataError(f"{row.where}: {error} (read as {convention.name})") from None


def _lacks(row: Row, columns: Columns, convention: Convention, need: str) -> DataError:
    lacked = f"{need.replace('|', ' or ')}{convention.nearest(need, columns)}"
    return DataError(
        f"{row.where}: lacks column {lacked}, which rows of {convention.name} have; it has: {', '.join(columns)}"
    )


def _measured(source: TaskSource, splits: Splits) -> TaskSource:
    """Choose the split of an evaluated source that names none, with a TaskWarning where it has several."""
    split = splits.measured
    if len(splits.names) > 1:
        chosen = f"{source.path}: its split '{split}' is evaluated on, of {', '.join(splits.names)}"
        warnings.warn(f"{chosen}: task.split names another", TaskWarning, stacklevel=2)
    return source if split == TRAIN else source.model_copy(update={"split": split})


def is_held_out(same: str, share: float) -> bool:
    """Return whether the question with this key is for evaluation; it is so on every machine."""
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
    """Yield (place, question) of an evaluation's rows, without our instructions. Each of its files is read by its own
    columns. columns: `columns` of the tasks that it is compared with: the first that fit are used where its own are of
    no convention. Raises DataError."""
    if not path:
        raise DataError("against: an empty name names no file")
    for file in files_of(folder_of(Path(path), "test") if has_splits(Path(path)) else Path(path)):
        convention: Convention | None = None
        own: Mapping[str, str] = {}
        for row in read_rows(file):
            if convention is None:
                convention, own = _recognised_by_any(row, columns)
            item = _item(row, map_columns(row, own), convention, asked=True)
            yield row.where, item.bare or item.question


def _recognised_by_any(row: Row, columns: Sequence[Mapping[str, str]]) -> tuple[Convention, Mapping[str, str]]:
    """Recognise a row's convention, by its own columns or one of these, and return both. A row without an answer is
    recognised as if it had one, by the first of these that maps its question. Raises DataError."""
    try:
        return recognise(row.columns, row.where, {}), {}
    except DataError:
        for one in columns:
            with suppress(DataError):
                return recognise(map_columns(row, one), row.where, one), one
        for one in (*(one for one in columns if "question" in one), {}):
            asked = {name: column for name, column in one.items() if name in _ASKED}
            with suppress(DataError):
                return recognise({**map_columns(row, asked), "answer": None}, row.where, asked), asked
        raise


def _check_lengths(item: Item, row: Row, grader: str) -> None:
    """Raise DataError for a huge question or answer; tests, which may be the answer, may have any length."""
    answers = () if grader == CODE or item.cases else (("answer", item.answer, MOST_ANSWER),)
    for column, value, most in (*answers, ("question", item.question, MOST_QUESTION)):
        if len(value) > most:
            raise DataError(
                f"{row.where}: its {column} has {len(value):,} characters, {most:,} at most: is another column meant? "
                f"It has: {', '.join(row.columns)}"
            )
