"""What a tracker is: a place besides metrics.jsonl that a run's metrics go to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from retcon.core.registry import Registry


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """project, name: as `track.project` and `track.name` say. id: the same in every session of the run, and no other
    run's. folder: the run's. config: its recipe, section to key to value. step: the first that will be logged."""

    project: str
    name: str
    id: str
    folder: Path
    config: Mapping[str, Any]
    step: int


class Tracker:
    """A tracker that a recipe can name (`track.to`): the one subclass in a file of `runs/trackers`, or anywhere, by its
    import path. It works in a thread of its own, where it may be slow and may raise: a run goes on without it.

    needs: packages to import, without which no work starts. Made when the first step is logged.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[Registry[Tracker]]

    def __init__(self, run: TrackedRun) -> None:
        raise NotImplementedError

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take a step's metrics, under the names that `track.names` chooses."""
        raise NotImplementedError

    def close(self) -> None:
        """No further step will come, of this session at least."""


Tracker.kinds = Registry("tracker", "retcon.runs.trackers", Tracker)
