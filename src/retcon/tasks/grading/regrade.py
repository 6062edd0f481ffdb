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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from retcon.core.errors import RecordError
from retcon.core.together import together
from retcon.core.types import Stop, Trajectory
from retcon.store import jsonl
from retcon.store.alone import LOCK, alone
from retcon.store.lines import LineAppender
from retcon.store.whole import PARTIAL, write_json
from retcon.tasks.data.grading import is_answered
from retcon.tasks.grading.grading import GradeSettings, Grading
from retcon.tasks.grading.stored import (
    ABOUT,
    by_run,
    options_of_run,
    tasks_of,
    tell_others,
    tell_unreturned,
    trajectory_files,
)
from retcon.tasks.grading.types import Verdict
from retcon.tasks.registry import as_returned
from retcon.tasks.types import Task

VERDICTS = "verdicts.jsonl"


class Regraded(msgspec.Struct, frozen=True):
    """What became of one rollout. file, n: where it is stored (n from 0). reward: None where it could not be graded.
    why: of the grader, or its fault. right: what the grader says, whatever its score; None where it could not be
    graded, and in files of before it was told."""

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
        stored = chain.from_iterable(jsonl.read(path) for path, _ in part.files)
        tell_unreturned(stored, [path for path, _ in part.files])
    with alone(job.out):
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

        await together(work() for _ in range(job.at_once))


async def _regraded(grading: Grading, task: Task, trajectory: Trajectory, name: str, n: int) -> Regraded:
    graded, said = await grading.judged(task, _ended(trajectory))
    score, right = (said.score, said.right) if isinstance(said, Verdict) else (None, None)
    return Regraded(
        name, n, trajectory.id, trajectory.reward, graded.reward, score, said.why, graded.answer, graded.stop, right
    )


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
        yield replace(trajectory, reward=one.reward, answer=one.answer, stop=one.stop)


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
            if changed := "; ".join(_differing(old, json.loads(json.dumps(about)))):
                raise RecordError(f"-o {job.out} was begun otherwise ({changed}): choose another, or {again}")
            return
        write_json(marker, about)
    except OSError as error:
        raise RecordError(f"-o {job.out} cannot be written: {error}") from error


def _differing(old: object, new: object, key: str = "") -> Iterator[str]:
    """`key was X, is Y` for every key that differs, in tables and lists within too; None where there is none."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = ({str(n): one for n, one in enumerate(both)} for both in (old, new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{key} was {old!r}, is {new!r}"
        return
    for name in dict.fromkeys((*new, *old)):
        yield from _differing(old.get(name), new.get(name), f"{key}.{name}" if key else name)


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
