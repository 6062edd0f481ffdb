"""What a run keeps of its rollouts, and the tasks that they are of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from retcon.config.schema import TaskSection
from retcon.core.errors import MissingExtra, RecipeError, RecordError, nearest
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.data.text import NAMED, key
from retcon.tasks.registry import TaskSet, training_prompts
from retcon.tasks.types import Task

ABOUT = "regrade.json"
"""Marks a folder that regrading wrote."""
DRAWS_PER_TASK, MORE_DRAWS = 50, 50_000
"""Tasks that are drawn anew while those of stored rollouts are looked for: a run may have passed over many."""


def trajectory_files(run: Path) -> list[tuple[Path, Path]]:
    """(file, its path within the run) of every trajectory file of a run folder; of a file, itself alone.

    Raises RecordError where there is none.
    """
    if run.is_file():
        return [(run, Path(run.name))]
    if not run.is_dir():
        siblings = [p.name for p in run.parent.iterdir()] if run.parent.is_dir() else []
        raise RecordError(f"{run} does not exist{nearest(run.name, siblings)}")
    found = [
        path
        for path in sorted([*run.rglob("*.jsonl"), *run.rglob("*.jsonl.gz")])
        if (path.parent.name == "trajectories" or path.name.startswith("trajectories"))
        and not any((folder / ABOUT).exists() for folder in path.parents)
    ]
    if not found:
        raise RecordError(f"{run} holds no trajectories (trajectories/*.jsonl, trajectories-*.jsonl)")
    return [(path, path.relative_to(run)) for path in found]


def read_tasks(path: Path) -> Iterator[Task]:
    """Tasks of a file of JSON Lines with `answer`, `id` or `question` or both, and what else a grader needs; a task
    without an id gets the one that a row without one has in a run, but for its source. Raises RecordError, which begins
    `FILE, line N:`."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _task(line, f"{path}, line {number}")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error


def tasks_of(files: Iterable[Path], wanted: set[str], given: Path | None) -> dict[str, Task]:
    """The tasks of stored rollouts, by id: of a file, where one is given, else as the runs beside the files drew them.

    Raises RecordError where some are not found.
    """
    why = ""
    if given is not None:
        found, why = _given(given, wanted)
    else:
        found = {}
        for about in _manifests(files):
            try:
                for task in _drawn(about, len(wanted)):
                    if len(found) == len(wanted):
                        break
                    if task.id in wanted:
                        found[task.id] = task
            except (DataError, MissingExtra) as error:  # data that are no longer there, say
                why = f" ({error})"
    if missing := sorted(wanted - found.keys()):
        where = f"{given} holds" if given is not None else "what is known of the run gives"
        raise RecordError(
            f"{where} {len(found)} of the {len(wanted)} tasks, but not {missing[0]!r}{why}: name a file that holds "
            "them all with --tasks (JSON Lines with id and answer, where 'mine/17' may be called '17')"
        )
    return found


def _given(path: Path, wanted: set[str]) -> tuple[dict[str, Task], str]:
    """Those tasks of a file that are wanted, by the wanted id; and a phrase on which ids the file has. An id counts as
    it is, or as what follows the source in that of one wanted task alone."""
    tails = Counter(id.partition("/")[2] for id in wanted)
    meant = {tail: id for id in wanted if tails[tail := id.partition("/")[2]] == 1} | {id: id for id in wanted}
    found: dict[str, Task] = {}
    some: list[str] = []
    for task in read_tasks(path):
        if len(some) < 3:
            some.append(task.id)
        id = meant.get(task.id)
        if id is not None and (id == task.id or id not in found):
            found[id] = replace(task, id=id)
    return found, f" (its ids are such as {', '.join(map(repr, some))})" if some else " (it is empty)"


def _manifests(files: Iterable[Path]) -> list[Mapping[str, Any]]:
    """What the runs and evaluations around these files say of themselves."""
    folders = dict.fromkeys(folder for file in files for folder in file.resolve().parents[:3])
    found = []
    for path in (folder / name for folder in folders for name in ("run.json", "result.json")):
        if path.is_file():
            try:
                found.append(json.loads(path.read_text(encoding="utf-8")))
            except ValueError as error:
                raise RecordError(f"{path} is not JSON: {error}") from None
    return found


def _drawn(about: Mapping[str, Any], wanted: int) -> Iterator[Task]:
    """The tasks that a run or an evaluation drew, and more: those too that were left out as too long, as nobody counts
    tokens here. Raises DataError, MissingExtra for data that cannot be read."""
    recipe = about.get("recipe") or {}
    said = dict(recipe.get("task") or {})
    limited = bool(said.pop("max_prompt_tokens", 0))
    try:
        section = TaskSection.kinds.find(str(said.get("kind", "")))
        tasks: TaskSet = section.model_validate({k: v for k, v in said.items() if k in section.model_fields}).build()
    except (RecipeError, ValidationError):
        return  # a set of someone's own that is not found by name
    evaluation = recipe.get("evaluate")
    if "checkpoint" in about and evaluation:
        count = int(evaluation["problems"])
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


def _task(line: bytes, where: str) -> Task:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from None
    id = row.get("id") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not (isinstance(id, str | int) or "question" in row):
        raise RecordError(f"{where}: a task is an object with 'id', or 'question', and 'answer'")
    if id is None:
        id = key(str(row["question"]))[:NAMED]
    answer = row.get("answer", "")
    if not isinstance(answer, str | int | float):
        raise RecordError(f"{where}: 'answer' is not text")
    meta = {key: value for key, value in row.items() if key not in ("id", "answer", "question")}
    return Task(str(id), str(row.get("question", "")), str(answer), meta=meta)
