"""Rows of a Hugging Face data set, by the `datasets` package where that is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from retcon.core.errors import MissingExtra, nearest
from retcon.tasks.data.fields import DataError, Row

BySplit = Mapping[str, Iterable[Mapping[str, Any]]]
NO_SUBSET = "Config name is missing"
"""How the package begins to say that it takes the name of a subset; other failures are ValueErrors too."""
INSTEAD = "or download a file of it and give its path"


def hub_splits(id: str, *, subset: str, revision: str) -> BySplit:
    """The rows of a data set by split. subset, revision: "" for the data set's own default.

    Raises MissingExtra without the package; DataError where the hub cannot be reached, or has no such data set or
    subset, with those that there are.
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
        raise DataError(f"data set {id}{at} cannot be loaded without the hub ({_said(error)}): go online, {INSTEAD}"
                        ) from error  # fmt: skip
    except (OSError, ValueError, RuntimeError) as error:
        asks = isinstance(error, ValueError) and (subset or NO_SUBSET in str(error))
        there = _subsets(datasets, id, revision) if asks else ()
        if len(there) > 1 and subset not in there:
            lacks = f"has no subset '{subset}'{nearest(subset, there)}" if subset else "comes in several subsets"
            raise DataError(f"data set {id}{at} {lacks}: name one by task.subset (of `retcon data`: --subset): "
                            f"{', '.join(there)}") from None  # fmt: skip
        raise DataError(f"data set {id}{at} cannot be loaded: {_said(error)}") from error
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


def _subsets(datasets: ModuleType, id: str, revision: str) -> Sequence[str]:
    """Their names; none where they cannot be had either."""
    failures: tuple[type[Exception], ...] = (*_offline_errors(), OSError, ValueError, RuntimeError)
    try:
        names: Sequence[str] = datasets.get_dataset_config_names(id, revision=revision or None)
    except failures:
        return ()
    return names


def _said(error: Exception) -> str:
    """On one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
