"""Choosing a trajectory that shows what purification does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from retcon.core.types import REPLACED, Trajectory
from retcon.store import jsonl
from retcon.store.compression import read_once


def repaired(trajectory: Trajectory) -> bool:
    """Whether a purifier replaced something in it."""
    return any(t.repair is not None and t.repair.decision in REPLACED for t in trajectory.turns)


def showcase(trajectories: Iterable[Trajectory]) -> Trajectory | None:
    """The shortest rewarded trajectory with repairs that are all shallow; None where there is none."""

    def shallow(trajectory: Trajectory) -> bool:
        decisions = [t.repair.decision for t in trajectory.turns if t.repair is not None]
        return (trajectory.reward or 0) > 0 and bool(decisions) and set(decisions) == {"shallow"}

    def length(trajectory: Trajectory) -> int:
        return sum(len(attempt.text) for turn in trajectory.turns for attempt in turn.raw())

    return min(filter(shallow, trajectories), key=length, default=None)


def showcase_in(folder: Path) -> tuple[Trajectory, Path] | None:
    """The showcase of a run folder and the file that holds it; the latest step that has one.

    Raises RecordError for a file that cannot be read.
    """
    for file in _latest_first(folder):
        found = showcase(jsonl.read(file))
        if found is not None:
            return found, file
    return None


def _latest_first(folder: Path) -> Iterator[Path]:
    yield from sorted(read_once((folder / "trajectories").glob("step-*.jsonl*")), reverse=True)
