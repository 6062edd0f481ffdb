"""Stored rollouts scored again: new files in a folder of their own, the old ones as they were.

verdicts.jsonl               a line for each rollout, added as it is graded: old and new reward, and why
regrade.json                 by which grader, of which files; whether it is finished
trajectories/…               the files of the run, with the new rewards

A verdict that is there is not asked for again: the same job goes on where it was interrupted.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import unicodedata
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, chain, groupby
from pathlib import Path
from textwrap import shorten
from typing import Any

import msgspec
from pydantic import ValidationError

from retcon.config.schema import TaskSection
from retcon.core.concurrency import gather_or_cancel
from retcon.core.errors import MissingExtra, RecipeError, RecordError, TaskWarning, nearest_path
from retcon.core.types import Stop, Trajectory
from retcon.store import jsonl
from retcon.store.compression import SUFFIXES, drop_duplicates_and_warn
from retcon.store.lines import LineAppender
from retcon.store.whole import LOCK, PARTIAL, lock_folder, write_json
from retcon.tasks.data.conventions import Convention, conventions
from retcon.tasks.data.fields import NAMED, ColumnError, Columns, DataError, Item, Row, is_missing, question_key
from retcon.tasks.data.load import choose_grader, is_answered
from retcon.tasks.data.rows import is_data_file, read_rows
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.registry import Options, Verdict
from retcon.tasks.registry import TaskSet, as_returned, training_prompts
from retcon.tasks.types import Task

NO_TASK = "a task is an object with 'id', or 'question', and 'answer', or a row as training reads them"
NO_TEXT = "'answer' is not text"


def given_tasks(path: Path, wanted: set[str]) -> tuple[dict[str, Task], str]:
    """Those tasks of a file that are wanted, by the wanted id; and a phrase on which ids the file has. An id counts as
    it is, or as what follows the source in that of one wanted task alone. Raises RecordError, as `read_tasks`."""
    tails = Counter(id.partition("/")[2] for id in wanted)
    meant = {tail: id for id in wanted if tails[tail := id.partition("/")[2]] == 1} | {id: id for id in wanted}
    found: dict[str, Task] = {}
    some: list[str] = []
    for ids, task in read_tasks(path):
        if len(some) < 3:
            some.append(task.id)
        for called in ids:
            id = meant.get(called)
            if id is not None and (id == called or id not in found):
                found[id] = replace(task, id=id)
                break
    return found, f" (its ids are such as {', '.join(map(repr, some))})" if some else " (it is empty)"


def read_tasks(path: Path) -> Iterator[tuple[list[str], Task]]:
    """The tasks of a file, each with all ids that it may have in a run, but for its source; the first is its own.

    A row of a known convention is read as training reads it; of any other, which has an `id` or a `question`, `answer`
    is the answer, and what else it holds is for its grader. Raises RecordError, which begins `FILE, line N:`.
    """
    convention: Convention | None = None
    try:
        for row in _rows(path):
            if convention is None or not convention.has(row.columns):
                convention = next((one for one in conventions() if one.has(row.columns)), None)
            yield _task(row, convention)
    except DataError as error:
        raise RecordError(str(error)) from error
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error


def _rows(path: Path) -> Iterator[Row]:
    """JSON Lines under any name, and the kinds of files that data are read of."""
    if path.is_file() and is_data_file(path.name):
        yield from read_rows(path)
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Row(_decoded(line, where := f"{path}, line {number}"), number, where)


def _decoded(line: bytes, where: str) -> dict[str, object]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from None
    return row if isinstance(row, dict) else {}


def _task(row: Row, convention: Convention | None) -> tuple[list[str], Task]:
    """Raises RecordError for a row that is no task."""
    columns = row.columns
    item, misfit = _read_given(columns, convention)
    id, question = columns.get("id"), columns.get("question")
    ids = [str(id)] if isinstance(id, str | int) else []
    if item is not None:
        ids += [item.id, _named(item.question)]
    if id is None and question is not None:
        ids.append(_named(str(question)))
    if not (ids := [id for id in dict.fromkeys(ids) if id]):
        raise RecordError(f"{row.where}: {misfit or NO_TASK}")
    answer = columns.get("answer", "")
    if item is not None and (item.answer or is_missing(answer)):
        answer = item.answer
    if not isinstance(answer, str | int | float):
        raise RecordError(f"{row.where}: {misfit or NO_TEXT}")
    if item is None:
        meta = {name: value for name, value in columns.items() if name not in ("id", "answer", "question")}
        return ids, Task(ids[0], str(question or ""), str(answer), meta=meta)
    return ids, Task(ids[0], item.question, str(answer), item.system, _meta(item, convention), item.before)


def _read_given(columns: Columns, convention: Convention | None) -> tuple[Item | None, str]:
    """A row as training reads it, None where that cannot be, and why."""
    try:
        item = convention.read(columns) if convention is not None else None
    except ColumnError as misfit:
        return None, str(misfit)
    return item, ""


def _named(question: str) -> str:
    return question_key(question)[:NAMED]


def _meta(item: Item, convention: Convention | None) -> Mapping[str, object]:
    """As in a run; a task that is graded as those that name no grader are names none."""
    usual = convention.grader if convention is not None and convention.grader != GradeSettings().grader else ""
    about = {"grader": choose_grader(item, "", usual)[1], "source": item.source, "reference": item.reference}
    return {**item.meta, **{name: value for name, value in about.items() if value}}


ABOUT = "regrade.json"
"""Marks a folder that regrading wrote."""
_STEP = re.compile(r"step-(\d+)\.")
"""How the file of a step's rollouts begins."""
DRAWS_PER_TASK, MORE_DRAWS = 50, 50_000
"""Tasks that are drawn anew while those of stored rollouts are looked for: a run may have passed over many."""


def trajectory_files(run: Path) -> list[tuple[Path, Path]]:
    """(file, its path within the run) of every trajectory file of a run folder, without duplicates; of a
    file, itself alone. Raises RecordError where there is none.
    """
    if run.is_file():
        return [(run, Path(run.name))]
    if not run.is_dir():
        raise RecordError(f"{run} does not exist{nearest_path(run)}")
    found = [
        path
        for path in sorted(path for suffix in ("", *SUFFIXES) for path in run.rglob(f"*.jsonl{suffix}"))
        if (path.parent.name == "trajectories" or path.name.startswith("trajectories"))
        and not path.name.startswith(PARTIAL)  # of a process that was killed, or is at it
        and not any((folder / ABOUT).exists() for folder in path.parents)
    ]
    if not found:
        raise RecordError(f"{run} holds no trajectories (trajectories/*.jsonl, trajectories-*.jsonl)")
    return [(path, path.relative_to(run)) for path in drop_duplicates_and_warn(found)]


def by_run(files: Iterable[tuple[Path, str]]) -> Iterator[list[tuple[Path, str]]]:
    """Trajectory files, each after its path, in order; those of one run or evaluation, the nearest around, together,
    as long as stages of it have one [task]. Raises RecordError for a manifest that cannot be read."""
    for beside, group in groupby(files, key=lambda file: _manifest_files([file[0]])[:1]):
        about = next(map(_read, beside), {})
        for _, part in groupby(group, key=lambda file: _of_stage(about, file[0])):
            yield list(part)


def tasks_of(files: Iterable[Path], wanted: set[str], given: Path | None) -> dict[str, Task]:
    """The tasks of stored rollouts, by id: of a file, where one is given, else as the runs beside the files drew them.

    Raises RecordError where some are not found.
    """
    why = ""
    if given is not None:
        found, why = given_tasks(given, wanted)
    else:
        found = {}
        for about in _manifests(files):
            try:
                for task in _drawn(about, len(wanted)):
                    if len(found) == len(wanted):
                        break
                    if task.id in wanted:
                        found[task.id] = task
            except (DataError, MissingExtra, RecipeError) as error:  # data, or a server, that are no longer there, say
                why = f" ({error})"
    if missing := sorted(wanted - found.keys()):
        where = f"{given} holds" if given is not None else "what is known of the run gives"
        raise RecordError(
            f"{where} {len(found)} of the {len(wanted)} tasks, but not {missing[0]!r}{why}: name a file that holds "
            "them all with --tasks (the data, or rows with id and answer, where 'mine/17' may be called '17')"
        )
    return found


def tell_others(trajectories: Iterable[Trajectory], tasks: Mapping[str, Task], where: str) -> None:
    """Warns (TaskWarning) where tasks are not what their rollouts were asked, as far as both say so: letters and digits
    of the question, in the prompt. Ids such as 0, 1, 2 are those of any data. where: what the tasks are of."""
    other: dict[str, str] = {}  # by task, the first of its rollouts
    for one in trajectories:
        asked, given = _signs("".join(s.text for s in one.prompt)), _signs(tasks[one.task].question)
        if asked and given not in asked:
            other.setdefault(one.task, one.id)
    if other:
        task, rollout = next(iter(other.items()))
        warnings.warn(
            f"{where}: {len(other)} of {len(tasks)} tasks are not what their rollouts were asked: {rollout} was not "
            f"asked {shorten(tasks[task].question, 80, placeholder='…')!r}; if these are other problems under the same "
            "ids, name the data of the run with --tasks",
            TaskWarning,
            stacklevel=2,
        )


def options_of_run(files: Iterable[Path], given: Options) -> Options:
    """The settings of graders that the recipe of the run or evaluation has that the files are of (`task.graders`), with
    what is given in their place, key by key. Raises RecordError for a manifest that cannot be read."""
    task = next((about.get("recipe") or {} for about in _manifests(files)), {}).get("task") or {}
    options: Options = (task.get("graders") if task.get("kind") == "file" else None) or {}
    return {name: {**options.get(name, {}), **given.get(name, {})} for name in dict.fromkeys((*options, *given))}


def _signs(text: str) -> str:
    """Letters and digits, whatever tokenizers and templates make of space and capitals."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _manifests(files: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """What the runs and evaluations around these files, which are of one stage, say of themselves, the nearest first;
    their [task] as that stage has it."""
    files = list(files)
    for about in map(_read, _manifest_files(files)):
        if not (changes := _of_stage(about, files[0])):
            yield about
            continue
        task = {**about["recipe"]["task"], **changes}
        if "name" not in changes:  # in a manifest it may be what the recipe's own file was called by
            yield {**about, "recipe": {**about["recipe"], "task": {**task, "name": ""}}}
        yield {**about, "recipe": {**about["recipe"], "task": task}}


def _read(manifest: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(manifest.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise RecordError(f"{manifest} is not JSON: {error}") from None


def _of_stage(about: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """What the stage that a file of a run's step is of changes in its [task]: nothing where there is none."""
    step, stages = _STEP.match(file.name), (about.get("recipe") or {}).get("stages")
    if step is None or not stages or about.get("kind") != "rl":  # SFT's are of the recipe's own problems
        return {}
    ends = list(accumulate(stage["steps"] for stage in stages[:-1]))
    own: Mapping[str, Any] = stages[bisect_left(ends, int(step[1]))].get("task") or {}
    return own


def _manifest_files(files: Iterable[Path]) -> list[Path]:
    folders = dict.fromkeys(folder for file in files for folder in file.resolve().parents[:3])
    return [path for folder in folders for name in ("run.json", "result.json") if (path := folder / name).is_file()]


def _drawn(about: Mapping[str, Any], wanted: int) -> Iterator[Task]:
    """The tasks that a run or an evaluation drew, and more: those too that were left out as too long, as nobody counts
    tokens here. Raises DataError, MissingExtra, RecipeError for a task set that cannot be had."""
    recipe = about.get("recipe") or {}
    said = dict(recipe.get("task") or {})
    limited = bool(said.pop("max_prompt_tokens", 0))
    try:
        section = TaskSection.kinds.find(str(said.get("kind", "")))
        tasks: TaskSet = section.model_validate({k: v for k, v in said.items() if k in section.model_fields}).build()
    except ValidationError:
        return  # it is of another version
    evaluation, samples = recipe.get("evaluate"), about.get("kind") == "sft"
    if evaluation and (samples or "checkpoint" in about):
        count = int(recipe["sft"]["samples"] if samples else evaluation["problems"])
        if limited and isinstance(tasks, DataTasks):
            count = max(count, len(tasks.held_out))
        yield from tasks.evaluation(count, int(evaluation["seed"]))
        return
    seed = (recipe.get("run") or {}).get("seed")
    if seed is None:
        return
    most = DRAWS_PER_TASK * wanted + MORE_DRAWS
    for epoch in range(most):
        drawn = 0
        for task in training_prompts(tasks, int(seed), epoch):
            yield task
            drawn += 1
            most -= 1
            if most <= 0:
                return
        if not drawn:
            return


VERDICTS = "verdicts.jsonl"


class Regraded(msgspec.Struct, frozen=True):
    """What became of one rollout. file, n: where it is stored (n from 0). reward: None where it could not be graded.
    why: of the grader, or its fault. right: what the grader says, whatever its score; None where it could not be
    graded, and in files of before it was told. grades: of `Verdict`."""

    file: str
    n: int
    id: str
    before: float | None
    reward: float | None
    score: float | None
    why: str
    answer: str | None
    stop: Stop
    right: bool | None = None
    grades: Mapping[str, bool] | None = None

    @property
    def is_right(self) -> bool:
        """Now."""
        return (self.reward or 0) > 0 if self.right is None else self.right

    @property
    def was_right(self) -> bool:
        """Before, of which there is the reward alone: one that stays the same says the same as it does now."""
        return self.is_right if self.before == self.reward else (self.before or 0) > 0

    @property
    def change(self) -> str:
        """`same`, `became right`, `became wrong`, `lost` or `found` (it had no reward before)."""
        if self.reward is None or self.before is None:
            return "same" if self.reward == self.before else "lost" if self.reward is None else "found"
        return "same" if self.is_right == self.was_right else f"became {'right' if self.is_right else 'wrong'}"


@dataclass(frozen=True, slots=True)
class Regrading:
    """run: a run folder or a trajectory file. settings: their options are in place of those that each run and each
    evaluation in it has of its own (`task.graders`). tasks: a file of the tasks, for rollouts whose tasks the run
    cannot give.
    by: the grader of all, in place of those that tasks name. at_once: rollouts that are graded at a time."""

    run: Path
    out: Path
    settings: GradeSettings
    by: str | None = None
    tasks: Path | None = None
    at_once: int = 2
    force: bool = False


def regrade(job: Regrading, on_progress: Callable[[int, int], None]) -> list[Regraded]:
    """Does the job; what became of each rollout, in order.

    Raises RecordError for files that cannot be read, tasks that are not found or have no answer, and an `out` that is
    finished, holds another job or something else; CheckpointError where another process is at work there; RecipeError
    for a grader or a key that is unknown. Warns (TaskWarning) where tasks are not what rollouts were asked.
    """
    files = [(path, str(name)) for path, name in trajectory_files(job.run)]
    ids = {name: [t.task for t in jsonl.read(path)] for path, name in files}
    parts = list(_parts(job, files, ids))
    settings = [asdict(part.settings) for part in parts]
    about = {
        "by": job.by,
        "settings": settings[0] if all(one == settings[0] for one in settings) else settings,
        "files": {name: _digest(path) for path, name in files},
        "tasks": None if job.tasks is None else _digest(job.tasks),
        "finished": False,
    }
    if job.tasks is not None:
        for part in parts:
            asyncio.run(_refuse_unanswered(job, part))
    _refuse_foreign(job.out)
    for part in parts:
        stored = chain.from_iterable(jsonl.read(path) for path, _ in part.files)
        tell_others(stored, part.tasks, "the data of the run" if job.tasks is None else str(job.tasks))
    with lock_folder(job.out):
        _prepare(job, about)
        known = {(one.file, one.n): one for one in _read_verdicts(job.out / VERDICTS)}
        total = sum(map(len, ids.values()))
        with LineAppender(job.out / VERDICTS) as verdicts:

            def add(one: Regraded) -> None:
                verdicts.add(msgspec.json.encode(one) + b"\n", name=f"the verdict on {one.id}")
                known[one.file, one.n] = one
                on_progress(len(known), total)

            on_progress(len(known), total)
            for part in parts:
                asyncio.run(_grade(part, job, known, add))
        for path, name in files:
            target = job.out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            jsonl.write(target, _scored(path, name, known))
        write_json(job.out / ABOUT, {**about, "finished": True})
    return [known[name, n] for _, name in files for n in range(len(ids[name]))]


def counts(regraded: Sequence[Regraded]) -> Counter[str]:
    """How many rollouts there are (`rollouts`), were right before (`before`), are right now (`now`), and of each
    change."""
    found = Counter(one.change for one in regraded)
    found["rollouts"] = len(regraded)
    found["before"] = sum(one.was_right for one in regraded)
    found["now"] = sum(one.is_right for one in regraded)
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """The files of one run or evaluation. tasks: of their rollouts, by id."""

    files: Sequence[tuple[Path, str]]
    settings: GradeSettings
    tasks: Mapping[str, Task]


def _parts(job: Regrading, files: Sequence[tuple[Path, str]], ids: Mapping[str, Sequence[str]]) -> Iterator[_Part]:
    """ids: of the tasks of each file's rollouts, by its name. Raises as `regrade`, before any work."""
    given = None
    if job.tasks is not None:
        given = tasks_of([path for path, _ in files], set(chain(*ids.values())), job.tasks)
    for group in by_run(files):
        paths = [path for path, _ in group]
        settings = replace(job.settings, options=options_of_run(paths, job.settings.options))
        Grading(settings)  # refuses what is unknown
        wanted = {id for _, name in group for id in ids[name]}
        known = tasks_of(paths, wanted, None) if given is None else given
        yield _Part(group, settings, {id: task for id, task in known.items() if id in wanted})


async def _refuse_unanswered(job: Regrading, part: _Part) -> None:
    """Raises RecordError for a task of the file that is named that lacks what its grader goes by: whatever was said
    would be wrong."""
    async with Grading(part.settings) as grading:
        for task in (_graded_by(task, job.by) for task in part.tasks.values()):
            if is_answered(task, grading.name_for(task)):
                continue
            try:
                await grading.check(task)
            except ValueError as error:
                raise RecordError(
                    f"{job.tasks}: there is nothing to grade task {task.id!r} by ({error}): a row holds its 'answer', "
                    "or what else its grader needs"
                ) from None


async def _grade(
    part: _Part, job: Regrading, known: Mapping[tuple[str, int], Regraded], add: Callable[[Regraded], None]
) -> None:
    todo = (
        (name, n, trajectory)
        for path, name in part.files
        for n, trajectory in enumerate(jsonl.read(path))
        if (name, n) not in known
    )
    async with Grading(part.settings, at_once=job.at_once) as grading:

        async def work() -> None:
            for name, n, trajectory in todo:  # shared: each takes the next
                if job.by is None and isinstance(trajectory.returned, float):
                    add(_kept(trajectory, name, n))
                    continue
                add(await _regraded(grading, _graded_by(part.tasks[trajectory.task], job.by), trajectory, name, n))

        await gather_or_cancel(work() for _ in range(job.at_once))


async def _regraded(grading: Grading, task: Task, trajectory: Trajectory, name: str, n: int) -> Regraded:
    graded, said = await grading.judged(task, _ended(trajectory))
    score, right = (said.score, said.right) if isinstance(said, Verdict) else (None, None)
    return Regraded(
        name, n, trajectory.id, trajectory.reward, graded.reward, score, said.why, graded.answer, graded.stop, right,
        graded.grades,
    )  # fmt: skip


def _kept(trajectory: Trajectory, name: str, n: int) -> Regraded:
    """A rollout with the reward that its harness returned, which is no grader's."""
    reward, why = trajectory.reward, "the reward that its harness returned"
    return Regraded(name, n, trajectory.id, reward, reward, None, why, trajectory.answer, trajectory.stop)


def _ended(trajectory: Trajectory) -> Trajectory:
    """What is graded of it. A rollout that came to its answer and was lost when it was graded is one that ended."""
    if isinstance(trajectory.returned, str):
        return as_returned(trajectory)
    if trajectory.stop == "infrastructure" and trajectory.turns and trajectory.turns[-1].stop == "answer":
        return replace(trajectory, stop="answer")
    return trajectory


def _graded_by(task: Task, by: str | None) -> Task:
    return task if by is None else replace(task, meta={**task.meta, "grader": by})


def _scored(path: Path, name: str, known: Mapping[tuple[str, int], Regraded]) -> Iterator[Trajectory]:
    for n, trajectory in enumerate(jsonl.read(path)):
        one = known[name, n]
        graded = replace(trajectory, reward=one.reward, answer=one.answer, reason=one.why or None)
        yield replace(graded, stop=one.stop, grades=one.grades)


def _refuse_foreign(out: Path) -> None:
    """Raises RecordError where something else than this command's results is at `out`."""
    try:
        names = [path.name for path in out.iterdir()] if out.is_dir() else []
        there = (out.exists() and not out.is_dir()) or any(not n.startswith(PARTIAL) and n != LOCK for n in names)
    except OSError as error:
        raise RecordError(f"-o {out} cannot be read: {error}") from error
    if there and not (out / ABOUT).is_file():
        raise RecordError(f"-o {out} is there, and not of this command: choose another")


def _prepare(job: Regrading, about: Mapping[str, Any]) -> None:
    """Marks the folder, or finds it as this job left it. Raises RecordError."""
    marker = job.out / ABOUT
    again = "--force begins anew"
    there = marker.is_file()
    old = _marked(marker, again, force=job.force) if there else {}
    files = old.get("files", about["files"])
    if not files.keys() & about["files"].keys():  # x.jsonl and x.jsonl.gz are regraded into one folder
        raise RecordError(f"-o {job.out} holds what came of {next(iter(files), 'others')}: choose another")
    try:
        if there and job.force:
            for name in (VERDICTS, *files):  # and nothing that someone else put there
                (job.out / name).unlink(missing_ok=True)
        elif there:
            if old.get("finished"):
                raise RecordError(f"-o {job.out} is there already, and finished; {again}")
            now = json.loads(json.dumps(about))
            changed = [f"{key} was {old.get(key)}, is {now[key]}" for key in now if old.get(key) != now[key]]
            if changed:
                said = f"-o {job.out} was begun otherwise ({'; '.join(changed)}): choose another, or {again}"
                raise RecordError(said)
            return
        write_json(marker, about)
    except OSError as error:
        raise RecordError(f"-o {job.out} cannot be written: {error}") from error


def _marked(marker: Path, again: str, *, force: bool) -> dict[str, Any]:
    """What it says; nothing where it cannot be read, and that is to be begun anew. Raises RecordError."""
    try:
        return dict(json.loads(marker.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        if force:
            return {}
        raise RecordError(f"{marker} cannot be read: {error}; {again}") from error


def _read_verdicts(path: Path) -> Iterator[Regraded]:
    """Those that are there; a last line that was cut off is none. Raises RecordError for another that is none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield msgspec.json.decode(line, type=Regraded)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return
            raise RecordError(
                f"{path}, line {number}: not a verdict: {error}; remove that line, and its rollout is graded again"
            ) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
