"""Rows of a Hugging Face data set, by the `datasets` package where that is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from retcon.core.errors import MissingExtra, nearest
from retcon.tasks.data.fields import DataError, Row

BySplit = Mapping[str, Iterable[Mapping[str, Any]]]
INSTEAD = "or download a file of it and give its path"


def hub_splits(id: str, *, subset: str, revision: str) -> BySplit:
    """The rows of a data set by split. subset, revision: "" for the data set's own default.

    Raises MissingExtra without the package; DataError where the hub cannot be reached, or has no such data set or
    subset.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtra(
            f"{id} is not a file here, and loading it from the Hugging Face hub needs the datasets package: "
            f"pip install datasets, {INSTEAD}"
        ) from None
    at = _at(revision)
    try:
        data: BySplit = datasets.load_dataset(id, subset or None, revision=revision or None)
    except _offline_errors() as error:
        raise DataError(f"data set {id}{at} cannot be loaded without the hub ({_first(error)}): go online, {INSTEAD}"
                        ) from error  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"data set {id}{at} cannot be loaded: {_first(error)}") from error
    return data


def hub_rows(id: str, data: BySplit, *, split: str, revision: str) -> Iterator[Row]:
    """The rows of one split of what `hub_splits` gave. Raises DataError, with the nearest name, where there is none."""
    if split not in data:
        at = _at(revision)
        raise DataError(f"data set {id}{at} has no split '{split}'{nearest(split, data)}; there are: {', '.join(data)}")
    for number, columns in enumerate(data[split], 1):
        yield Row(dict(columns), number, f"{id} ({split}), row {number}")


def _at(revision: str) -> str:
    return f" at revision {revision}" if revision else ""


def _offline_errors() -> tuple[type[Exception], ...]:
    """What is raised where the network fails; the hub's own client raises httpx's errors, and brings it along."""
    try:
        import httpx
    except ImportError:
        return ConnectionError, TimeoutError
    return ConnectionError, TimeoutError, httpx.HTTPError


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
