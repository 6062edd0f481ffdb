"""The tasks of stored rollouts, from a file that is named for them: the data that a run trained on, or rows by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from retcon.core.errors import RecordError
from retcon.tasks.data.conventions import Convention, conventions
from retcon.tasks.data.fields import Columns, DataError, Item, Misfit, Row, missing
from retcon.tasks.data.files.rows import is_data_file, read_rows
from retcon.tasks.data.grading import graded_item
from retcon.tasks.data.text import NAMED, key
from retcon.tasks.grading.grading import GradeSettings
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
    item, misfit = _read(columns, convention)
    id, question = columns.get("id"), columns.get("question")
    ids = [str(id)] if isinstance(id, str | int) else []
    if item is not None:
        ids += [item.id, _named(item.question)]
    if id is None and question is not None:
        ids.append(_named(str(question)))
    if not (ids := [id for id in dict.fromkeys(ids) if id]):
        raise RecordError(f"{row.where}: {misfit or NO_TASK}")
    answer = columns.get("answer", "")
    if item is not None and (item.answer or missing(answer)):
        answer = item.answer
    if not isinstance(answer, str | int | float):
        raise RecordError(f"{row.where}: {misfit or NO_TEXT}")
    if item is None:
        meta = {name: value for name, value in columns.items() if name not in ("id", "answer", "question")}
        return ids, Task(ids[0], str(question or ""), str(answer), meta=meta)
    return ids, Task(ids[0], item.question, str(answer), item.system, _meta(item, convention), item.before)


def _read(columns: Columns, convention: Convention | None) -> tuple[Item | None, str]:
    """A row as training reads it, None where that cannot be, and why."""
    try:
        item = convention.read(columns) if convention is not None else None
    except Misfit as misfit:
        return None, str(misfit)
    return item, ""


def _named(question: str) -> str:
    return key(question)[:NAMED]


def _meta(item: Item, convention: Convention | None) -> Mapping[str, object]:
    """As in a run; a task that is graded as those that name no grader are names none."""
    usual = convention.grader if convention is not None and convention.grader != GradeSettings().grader else ""
    about = {"grader": graded_item(item, "", usual)[1], "source": item.source, "reference": item.reference}
    return {**item.meta, **{name: value for name, value in about.items() if value}}
