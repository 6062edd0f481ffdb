"""Regrading of stored rollouts into a new folder.

verdicts.jsonl               a line for each rollout, added as it is graded: old and new reward, and why
regrade.json                 grader, files, and whether it is finished
trajectories/…               the files of the run, with the new rewards

Verdicts are not computed twice: an interrupted job continues.
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
from retcon.tasks.registry import TaskSet, training_prompts, with_returned_reply
from retcon.tasks.types import Task

NO_TASK = "a task is an object with 'id', or 'question', and 'answer', or a row as training reads them"
NO_TEXT = "'answer' is not text"


def select_tasks(path: Path, wanted: set[str]) -> tuple[dict[str, Task], str]:
    """Select wanted tasks of a file, and describe its ids. An id may lack the source of the wanted one, if that is
    unambiguous. Raises RecordError, as `read_tasks`."""
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
    """Yield a file's tasks, each after its possible ids. These lack a run's source; the task's own is first.

    A row of a known convention is read as in training; any other needs an `id` or a `question`; `answer` is the answer,
    and other columns are for its grader. Raises RecordError, which begins `FILE, line N:`.
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
    """Yield the rows of JSON Lines under any name, or of other kinds of data files."""
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
    """Return the ids and the task of a row. Raises RecordError for an invalid row."""
    columns = row.columns
    item, reason = _read_given(columns, convention)
    id, question = columns.get("id"), columns.get("question")
    ids = [str(id)] if isinstance(id, str | int) else []
    if item is not None:
        ids += [item.id, _named(item.question)]
    if id is None and question is not None:
        ids.append(_named(str(question)))
    if not (ids := [id for id in dict.fromkeys(ids) if id]):
        raise RecordError(f"{row.where}: {reason or NO_TASK}")
    answer = columns.get("answer", "")
    if item is not None and (item.answer or is_missing(answer)):
        answer = item.answer
    if not isinstance(answer, str | int | float):
        raise RecordError(f"{row.where}: {reason or NO_TEXT}")
    if item is None:
        meta = {name: value for name, value in columns.items() if name not in ("id", "answer", "question")}
        return ids, Task(ids[0], str(question or ""), str(answer), meta=meta)
    return ids, Task(ids[0], item.question, str(answer), item.system, _meta(item, convention), item.before)


def _read_given(columns: Columns, convention: Convention | None) -> tuple[Item | None, str]:
    """Read a row as training does; return None and the reason where that fails."""
    try:
        item = convention.read(columns) if convention is not None else None
    except ColumnError as error:
        return None, str(error)
    return item, ""


def _named(question: str) -> str:
    return question_key(question)[:NAMED]


def _meta(item: Item, convention: Convention | None) -> Mapping[str, object]:
    """Return the meta of a run's task; the default grader is not named."""
    usual = convention.grader if convention is not None and convention.grader != GradeSettings().grader else ""
    about = {"grader": choose_grader(item, "", usual)[1], "source": item.source, "reference": item.reference}
    return {**item.meta, **{name: value for name, value in about.items() if value}}


ABOUT = "regrade.json"
"""File that marks a folder written by regrading."""
_STEP = re.compile(r"step-(\d+)\.")
"""Beginning of the name of a step's file of rollouts."""
DRAWS_PER_TASK, MORE_DRAWS = 50, 50_000
"""Most tasks drawn again in search of those of stored rollouts: a run may have skipped many."""


def trajectory_files(run: Path) -> list[tuple[Path, Path]]:
    """Return a run's trajectory files with their paths in it; `run` may be such a file. Of a plain file and its
    compressed copy, one counts. Raises RecordError without any.
    """
    if run.is_file():
        return [(run, Path(run.name))]
    if not run.is_dir():
        raise RecordError(f"{run} does not exist{nearest_path(run)}")
    found = [
        path
        for path in sorted(path for suffix in ("", *SUFFIXES) for path in run.rglob(f"*.jsonl{suffix}"))
        if (path.parent.name == "trajectories" or path.name.startswith("trajectories"))
        and not path.name.startswith(PARTIAL)  # of a process that was killed, or is writing it
        and not any((folder / ABOUT).exists() for folder in path.parents)
    ]
    if not found:
        raise RecordError(f"{run} holds no trajectories (trajectories/*.jsonl, trajectories-*.jsonl)")
    return [(path, path.relative_to(run)) for path in drop_duplicates_and_warn(found)]


def group_by_run(files: Iterable[tuple[Path, str]]) -> Iterator[list[tuple[Path, str]]]:
    """Group consecutive trajectory files by run, and by stages with one [task]. files: (file, name). Raises RecordError
    for a manifest that cannot be read."""
    for beside, group in groupby(files, key=lambda file: _manifest_files([file[0]])[:1]):
        about = next(map(_read, beside), {})
        for _, part in groupby(group, key=lambda file: _stage_changes(about, file[0])):
            yield list(part)


def find_tasks(files: Iterable[Path], wanted: set[str], given: Path | None) -> dict[str, Task]:
    """Find the tasks of stored rollouts in a file, or their runs.

    Raises RecordError where some are not found.
    """
    why = ""
    if given is not None:
        found, why = select_tasks(given, wanted)
    else:
        found = {}
        for about in _manifests(files):
            try:
                for task in _drawn(about, len(wanted)):
                    if len(found) == len(wanted):
                        break
                    if task.id in wanted:
                        found[task.id] = task
            except (DataError, MissingExtra, RecipeError) as error:  # data, or a server, may be gone
                why = f" ({error})"
    if missing := sorted(wanted - found.keys()):
        where = f"{given} holds" if given is not None else "what is known of the run gives"
        raise RecordError(
            f"{where} {len(found)} of the {len(wanted)} tasks, but not {missing[0]!r}{why}: name a file that holds "
            "them all with --tasks (the data, or rows with id and answer, where 'mine/17' may be called '17')"
        )
    return found


def warn_of_other_tasks(trajectories: Iterable[Trajectory], tasks: Mapping[str, Task], where: str) -> None:
    """Warn (TaskWarning) of rollouts whose prompts lack their task's question. Letters and digits are compared, as ids
    such as 0, 1, 2 fit any data. where: source of the tasks."""
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
    """Return a run's grader settings with the given keys on top. They are `task.graders` of the recipe. Raises
    RecordError for a manifest that cannot be read."""
    task = next((about.get("recipe") or {} for about in _manifests(files)), {}).get("task") or {}
    options: Options = (task.get("graders") if task.get("kind") == "file" else None) or {}
    return {name: {**options.get(name, {}), **given.get(name, {})} for name in dict.fromkeys((*options, *given))}


def _signs(text: str) -> str:
    """Return letters and digits in lower case; tokenizers and templates may change the rest."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _manifests(files: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the manifests around these files of one stage, the nearest first, with that stage's [task]."""
    files = list(files)
    for about in map(_read, _manifest_files(files)):
        if not (changes := _stage_changes(about, files[0])):
            yield about
            continue
        task = {**about["recipe"]["task"], **changes}
        if "name" not in changes:  # a manifest may have the name of the recipe's own file there
            yield {**about, "recipe": {**about["recipe"], "task": {**task, "name": ""}}}
        yield {**about, "recipe": {**about["recipe"], "task": task}}


def _read(manifest: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(manifest.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise RecordError(f"{manifest} is not JSON: {error}") from None


def _stage_changes(about: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Return the [task] keys that a step file's stage changes; {} without stages."""
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
    """Draw the tasks of a run or evaluation, and more: too long ones as well, as no tokens are counted here. Raises
    DataError, MissingExtra, RecipeError for an unavailable task set."""
    recipe = about.get("recipe") or {}
    keys = dict(recipe.get("task") or {})
    limited = bool(keys.pop("max_prompt_tokens", 0))
    try:
        section = TaskSection.kinds.find(str(keys.get("kind", "")))
        tasks: TaskSet = section.model_validate({k: v for k, v in keys.items() if k in section.model_fields}).build()
    except ValidationError:
        return  # of another version
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


class RegradeResult(msgspec.Struct, frozen=True):
    """New verdict on one rollout. file, n: where it is stored (n from 0). reward: None where it could not be graded.
    why: of the grader, or its fault. right: the grader's verdict, whatever its score; None where it could not be
    graded, and in old files. grades: of `Verdict`."""

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
        """Return whether it is right now."""
        return (self.reward or 0) > 0 if self.right is None else self.right

    @property
    def was_right(self) -> bool:
        """Return whether it was right before, by its reward; equal rewards count alike."""
        return self.is_right if self.before == self.reward else (self.before or 0) > 0

    @property
    def change(self) -> str:
        """Return `same`, `became right`, `became wrong`, `lost` or `found` (first reward)."""
        if self.reward is None or self.before is None:
            return "same" if self.reward == self.before else "lost" if self.reward is None else "found"
        return "same" if self.is_right == self.was_right else f"became {'right' if self.is_right else 'wrong'}"


@dataclass(frozen=True, slots=True)
class RegradeJob:
    """A job of regrading. run: a run folder or a trajectory file. settings: their options override those of each run
    and evaluation in it (`task.graders`). tasks: a file of the tasks, for rollouts whose tasks the run cannot give. by:
    the grader of all, instead of those that tasks name. at_once: rollouts that are graded at a time."""

    run: Path
    out: Path
    settings: GradeSettings
    by: str | None = None
    tasks: Path | None = None
    at_once: int = 2
    force: bool = False


def regrade(job: RegradeJob, on_progress: Callable[[int, int], None]) -> list[RegradeResult]:
    """Do the job, and return the result of each rollout, in order.

    Raises RecordError for files that cannot be read, tasks that are not found or have no answer, and an `out` that is
    finished, holds another job or something else; CheckpointError where another process is at work there; RecipeError
    for an unknown grader or key. Warns (TaskWarning) of tasks that differ from their rollouts' prompts.
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
            asyncio.run(_check_answers(job, part))
    _check_out(job.out)
    for part in parts:
        stored = chain.from_iterable(jsonl.read(path) for path, _ in part.files)
        warn_of_other_tasks(stored, part.tasks, "the data of the run" if job.tasks is None else str(job.tasks))
    with lock_folder(job.out):
        _prepare(job, about)
        known = {(one.file, one.n): one for one in _read_verdicts(job.out / VERDICTS)}
        total = sum(map(len, ids.values()))
        with LineAppender(job.out / VERDICTS) as verdicts:

            def add(one: RegradeResult) -> None:
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


def count_results(regraded: Sequence[RegradeResult]) -> Counter[str]:
    """Count rollouts (`rollouts`), right ones `before` and `now`, and each change."""
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


def _parts(job: RegradeJob, files: Sequence[tuple[Path, str]], ids: Mapping[str, Sequence[str]]) -> Iterator[_Part]:
    """Yield the parts of a job. ids: of the tasks of each file's rollouts, by its name. Raises as `regrade`, before any
    work."""
    given = None
    if job.tasks is not None:
        given = find_tasks([path for path, _ in files], set(chain(*ids.values())), job.tasks)
    for group in group_by_run(files):
        paths = [path for path, _ in group]
        settings = replace(job.settings, options=options_of_run(paths, job.settings.options))
        Grading(settings)  # raises for unknown names
        wanted = {id for _, name in group for id in ids[name]}
        known = find_tasks(paths, wanted, None) if given is None else given
        yield _Part(group, settings, {id: task for id, task in known.items() if id in wanted})


async def _check_answers(job: RegradeJob, part: _Part) -> None:
    """Raise RecordError for a task of the given file without an answer, or what else its grader needs."""
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
    part: _Part, job: RegradeJob, known: Mapping[tuple[str, int], RegradeResult], add: Callable[[RegradeResult], None]
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
                add(await _regrade(grading, _graded_by(part.tasks[trajectory.task], job.by), trajectory, name, n))

        await gather_or_cancel(work() for _ in range(job.at_once))


async def _regrade(grading: Grading, task: Task, trajectory: Trajectory, name: str, n: int) -> RegradeResult:
    graded, outcome = await grading.judge(task, _ended(trajectory))
    score, right = (outcome.score, outcome.right) if isinstance(outcome, Verdict) else (None, None)
    return RegradeResult(
        name, n, trajectory.id, trajectory.reward, graded.reward, score, outcome.why, graded.answer, graded.stop, right,
        graded.grades,
    )  # fmt: skip


def _kept(trajectory: Trajectory, name: str, n: int) -> RegradeResult:
    """Return the result of a rollout that keeps the reward of its harness."""
    reward, why = trajectory.reward, "the reward that its harness returned"
    return RegradeResult(name, n, trajectory.id, reward, reward, None, why, trajectory.answer, trajectory.stop)


def _ended(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory to grade; one that was lost in grading after its answer counts as ended."""
    if isinstance(trajectory.returned, str):
        return with_returned_reply(trajectory)
    if trajectory.stop == "infrastructure" and trajectory.turns and trajectory.turns[-1].stop == "answer":
        return replace(trajectory, stop="answer")
    return trajectory


def _graded_by(task: Task, by: str | None) -> Task:
    return task if by is None else replace(task, meta={**task.meta, "grader": by})


def _scored(path: Path, name: str, known: Mapping[tuple[str, int], RegradeResult]) -> Iterator[Trajectory]:
    for n, trajectory in enumerate(jsonl.read(path)):
        one = known[name, n]
        graded = replace(trajectory, reward=one.reward, answer=one.answer, reason=one.why or None)
        yield replace(graded, stop=one.stop, grades=one.grades)


def _check_out(out: Path) -> None:
    """Raise RecordError where `out` holds something else than this command's results."""
    try:
        names = [path.name for path in out.iterdir()] if out.is_dir() else []
        there = (out.exists() and not out.is_dir()) or any(not n.startswith(PARTIAL) and n != LOCK for n in names)
    except OSError as error:
        raise RecordError(f"-o {out} cannot be read: {error}") from error
    if there and not (out / ABOUT).is_file():
        raise RecordError(f"-o {out} is there, and not of this command: choose another")


def _prepare(job: RegradeJob, about: Mapping[str, Any]) -> None:
    """Mark the folder, or check that this job began it. Raises RecordError."""
    marker = job.out / ABOUT
    again = "--force begins anew"
    there = marker.is_file()
    old = _read_marker(marker, again, force=job.force) if there else {}
    files = old.get("files", about["files"])
    if not files.keys() & about["files"].keys():  # x.jsonl and x.jsonl.gz are regraded into one folder
        raise RecordError(f"-o {job.out} holds what came of {next(iter(files), 'others')}: choose another")
    try:
        if there and job.force:
            for name in (VERDICTS, *files):  # other files stay
                (job.out / name).unlink(missing_ok=True)
        elif there:
            if old.get("finished"):
                raise RecordError(f"-o {job.out} is there already, and finished; {again}")
            now = json.loads(json.dumps(about))
            changed = [f"{key} was {old.get(key)}, is {now[key]}" for key in now if old.get(key) != now[key]]
            if changed:
                reason = f"-o {job.out} was begun otherwise ({'; '.join(changed)}): choose another, or {again}"
                raise RecordError(reason)
            return
        write_json(marker, about)
    except OSError as error:
        raise RecordError(f"-o {job.out} cannot be written: {error}") from error


def _read_marker(marker: Path, again: str, *, force: bool) -> dict[str, Any]:
    """Read the marker; {} for an unreadable one with `force`. Raises RecordError."""
    try:
        return dict(json.loads(marker.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        if force:
            return {}
        raise RecordError(f"{marker} cannot be read: {error}; {again}") from error


def _read_verdicts(path: Path) -> Iterator[RegradeResult]:
    """Yield the stored verdicts, without a truncated last line. Raises RecordError for another invalid line."""
    try:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield msgspec.json.decode(line, type=RegradeResult)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                return
            raise RecordError(
                f"{path}, line {number}: not a verdict: {error}; remove that line, and its rollout is graded again"
            ) from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
