"""Data sets that come in splits, each of which can be read alone: of the hub, or saved on this machine's disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.tasks.data.fields import Row
from retcon.tasks.data.files.rows import read_rows
from retcon.tasks.data.packaged.hub import hub_rows, hub_splits
from retcon.tasks.data.packaged.saved import folder_of, has_splits, saved_splits

if TYPE_CHECKING:
    from retcon.tasks.data.origin import Origin
    from retcon.tasks.data.settings import TaskSource

TRAIN = "train"
MEASURED = ("test", "validation", TRAIN)
"""What a model is measured on where nobody names a split: the first of these that there is."""


@dataclass(frozen=True, slots=True)
class Splits:
    """names: of all, in the data set's order. rows: those of one; it raises DataError, with the nearest name, where
    there is none of that name."""

    names: tuple[str, ...]
    rows: Callable[[str], Iterator[Row]]

    @property
    def measured(self) -> str:
        """See `MEASURED`."""
        return next((name for name in MEASURED if name in self.names), TRAIN)


def splits_of(source: TaskSource, origin: Origin) -> Splits | None:
    """Those of a source, None where its rows do not come in splits. Raises as `hub_splits` and `saved_splits`."""
    path = Path(source.path)
    if has_splits(path):
        return Splits(tuple(saved_splits(path)), lambda split: read_rows(folder_of(path, split)))
    if origin != "hub":
        return None
    data = hub_splits(source.path, subset=source.subset, revision=source.revision)
    return Splits(tuple(data), lambda split: hub_rows(source.path, data, split=split, revision=source.revision))
