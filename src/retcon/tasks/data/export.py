"""Tasks as rows of verl's data sets: what its trainer reads, and all that our own reader needs to have the task again.

| column | |
|---|---|
| `prompt` | messages: system prompt, what is said before the question, the question |
| `data_source` | the data set, by which verl sorts its figures of a validation |
| `reward_model` | `style` = rule, `ground_truth`: the answer |
| `extra_info` | `id` and `index` of the task, `split`, and in `retcon` what else it holds, as JSON |
| `agent_name` | verl's name of our agent loop |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from retcon.core.errors import MissingExtra
from retcon.core.installing import how_to_install
from retcon.store.outputs import refuse_special
from retcon.store.whole import explained, whole_file
from retcon.tasks.data.fields import Columns, DataError
from retcon.tasks.types import Split, Task

AGENT = "retcon"
META = "retcon"
AT_ONCE = 1000
"""Rows of a piece of the file, which is what stands in memory."""


def verl_rows(tasks: Iterable[Task], *, split: Split, system: str | None, source: str) -> Iterator[dict[str, Any]]:
    """A row for each task, in order. system: of tasks that bring none. source: the data set, of those that name none.

    Raises DataError for a task whose `meta` JSON has no form for.
    """
    for index, task in enumerate(tasks):
        spoken = task.system or system
        messages = [*([("system", spoken)] if spoken else []), *task.before, ("user", task.question)]
        try:
            meta = json.dumps(dict(task.meta), ensure_ascii=False, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"task {task.id}: what it holds besides cannot be written as JSON: {error}") from None
        yield {
            "prompt": [{"role": role, "content": content} for role, content in messages],
            "data_source": str(task.meta.get("source") or source),
            "reward_model": {"style": "rule", "ground_truth": task.answer},
            "extra_info": {"id": task.id, "index": index, "split": split, META: meta},
            "agent_name": AGENT,
        }


def exported_meta(extra_info: Columns) -> Mapping[str, Any] | None:
    """`meta` of the task that `verl_rows` made a row of; None of rows that somebody else made."""
    written = extra_info.get(META)
    if not isinstance(written, str):
        return None
    try:
        meta = json.loads(written)
    except ValueError:
        return None
    return meta if isinstance(meta, dict) else None


def write_verl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes them as Parquet, whole or not at all; returns how many. Raises MissingExtra without pyarrow, RecordError
    or StorageError where the file cannot be written, DataError where there is no row."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"writing Parquet needs pyarrow: {how_to_install('formats')}") from None
    text = pyarrow.string()
    schema = pyarrow.schema({
        "prompt": pyarrow.list_(pyarrow.struct({"role": text, "content": text})),
        "data_source": text,
        "reward_model": pyarrow.struct({"style": text, "ground_truth": text}),
        "extra_info": pyarrow.struct({"id": text, "index": pyarrow.int64(), "split": text, META: text}),
        "agent_name": text,
    })  # fmt: skip
    refuse_special(path)
    left, count = iter(rows), 0
    first = list(islice(left, AT_ONCE))
    if not first:
        raise DataError(f"{path}: there is no task to write")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        while first:
            writer.write_table(pyarrow.Table.from_pylist(first, schema))
            count += len(first)
            first = list(islice(left, AT_ONCE))
    return count
