"""Data sets on disk as the `save_to_disk` of Hugging Face's `datasets` leaves them: Arrow files with notes beside them,
for one that has splits a folder each. They are read without that package."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from retcon.core.errors import nearest
from retcon.store.foreign.parquet import arrow, row_reader, rows_of
from retcon.tasks.data.fields import DataError, Moment, Row

SUFFIX = ".arrow"
SPLITS = "dataset_dict.json"
ABOUT = (SPLITS, "dataset_info.json", "state.json")
"""What is said beside the files with rows."""


def has_splits(path: Path) -> bool:
    """Whether a folder is a data set that was saved with its splits."""
    return (path / SPLITS).is_file()


def saved_splits(path: Path) -> list[str]:
    """Which there are. Raises DataError."""
    try:
        return [str(name) for name in json.loads((path / SPLITS).read_text(encoding="utf-8"))["splits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / SPLITS} does not say which splits there are: {error!r}") from error


def folder_of(path: Path, split: str) -> Path:
    """That of one split. Raises DataError, with the nearest name, where there is none."""
    there = saved_splits(path)
    if split not in there:
        raise DataError(f"{path} has no split '{split}'{nearest(split, there)}; there are: {', '.join(there)}")
    return path / split


def arrow_rows(path: Path) -> Iterator[Row]:
    """The rows of an Arrow file, of the stream that `datasets` writes or the file format of others.

    Raises DataError for what is neither, or damaged; MissingExtra without pyarrow.
    """
    arrow(str(path))
    import pyarrow

    number = 0
    try:
        with pyarrow.memory_map(str(path)) as file:
            try:
                batches = iter(pyarrow.ipc.open_stream(file))
            except pyarrow.ArrowInvalid:
                whole = pyarrow.ipc.open_file(file)
                batches = (whole.get_batch(n) for n in range(whole.num_record_batches))
            for batch in batches:
                marked = row_reader(batch.schema, moment_reader)
                for row in rows_of(batch):
                    number += 1
                    yield Row(marked(msgspec.to_builtins(row)), number, f"{path}, row {number}")
    except (pyarrow.ArrowException, OSError, TypeError) as error:
        told = str(error).partition("\n")[0]
        raise DataError(f"{path}, row {number + 1}: the Arrow file cannot be read further: {told}") from error


def moment_reader(type: Any) -> Callable[[Any], Any] | None:
    """What marks the text of a time or date by its column's type in Arrow, None for other types; see `row_reader`."""
    from pyarrow import types

    return (lambda value: value if value is None else Moment(value)) if types.is_temporal(type) else None
