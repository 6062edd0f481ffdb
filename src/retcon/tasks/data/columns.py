"""Columns by the names that the settings give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retcon.core.errors import nearest
from retcon.tasks.data.fields import Columns, DataError, text
from retcon.tasks.data.rows import Row

SPLIT = "split"


def mapped(row: Row, columns: Mapping[str, str]) -> Columns:
    """The row, with the fields that the settings map under their own names in place of their columns."""
    if not columns:
        return row.columns
    found = {name: _look_up(row, column) for name, column in columns.items()}
    gone = {column if column in row.columns else column.partition(".")[0] for column in columns.values()}
    return {**{name: value for name, value in row.columns.items() if name not in gone}, **found}


def _look_up(row: Row, column: str) -> Any:
    if column in row.columns:
        return row.columns[column]
    value: Any = row.columns
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            there = list(value) if isinstance(value, dict) else list(row.columns)
            raise DataError(f"{row.where}: no column '{column}'{nearest(part, there)}; there are: {', '.join(there)}")
        value = value[part]
    return value


def split_of(row: Row, columns: Columns) -> str:
    about = columns.get("extra_info")
    holder = columns if SPLIT in columns else about if isinstance(about, dict) and SPLIT in about else None
    if holder is None:
        raise DataError(
            f"{row.where}: no column 'split'{nearest(SPLIT, columns)}, which says what is trained on; it has: "
            f'{", ".join(columns)}. Map it: columns = {{ split = "…" }}'
        )
    return text(holder, SPLIT)
