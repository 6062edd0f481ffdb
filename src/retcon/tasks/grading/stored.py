"""What a run keeps of its rollouts, and the tasks that they are of."""

from __future__ import annotations

import json
import re
import unicodedata
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, groupby
from pathlib import Path
from textwrap import shorten
from typing import Any

from pydantic import ValidationError

from retcon.config.schema import TaskSection
from retcon.core.errors import MissingExtra, RecipeError, RecordError, TaskWarning, nearest
from retcon.core.types import Trajectory
from retcon.store.compression import SUFFIXES, told_once
from retcon.store.whole import PARTIAL
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.grading.given import given_tasks
from retcon.tasks.grading.registry import Options
from retcon.tasks.registry import TaskSet, training_prompts
from retcon.tasks.types import Task

ABOUT = "regrade.json"
"""Marks a folder that regrading wrote."""
_STEP = re.compile(r"step-(\d+)\.")
"""How the file of a step's rollouts begins."""
DRAWS_PER_TASK, MORE_DRAWS = 50, 50_000
"""Tasks that are drawn anew while those of stored rollouts are looked for: a run may have passed over many."""


def trajectory_files(run: Path) -> list[tuple[Path, Path]]:
    """(file, its path within the run) of every trajectory file of a run folder, each once (`told_once`); of a
    file, itself alone. Raises RecordError where there is none.
    """
    if run.is_file():
        return [(run, Path(run.name))]
    if not run.is_dir():
        siblings = [p.name for p in run.parent.iterdir()] if run.parent.is_dir() else []
        raise RecordError(f"{run} does not exist{nearest(run.name, siblings)}")
    found = [
        path
        for path in sorted(path for suffix in ("", *SUFFIXES) for path in run.rglob(f"*.jsonl{suffix}"))
        if (path.parent.name == "trajectories" or path.name.startswith("trajectories"))
        and not path.name.startswith(PARTIAL)  # of a process that was killed, or is at it
        and not any((folder / ABOUT).exists() for folder in path.parents)
    ]
    if not found:
        raise RecordError(f"{run} holds no trajectories (trajectories/*.jsonl, trajectories-*.jsonl)")
    return [(path, path.relative_to(run)) for path in told_once(found)]


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


def tell_unreturned(trajectories: Iterable[Trajectory], files: Iterable[Path]) -> None:
    """Warns (TaskWarning) where a harness made the rollouts of these files, as the recipe has it that they are of, and
    none says what it returned: older versions did not keep that."""
    rollout = next((about.get("recipe") or {} for about in _manifests(files)), {}).get("rollout") or {}
    harness = rollout.get("harness")
    if not harness or any(one.returned is not None for one in trajectories):
        return
    warnings.warn(
        f"rollout.harness = '{harness}' made these rollouts, and none says what it returned: each is graded by the "
        "model's last message. That is right if it returned nothing; of text or rewards, which Retcon did not always "
        "keep, the new verdicts say nothing",
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
