"""Forwarding of metrics to trackers, in threads that cannot slow the run."""

from __future__ import annotations

import queue
import secrets
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from retcon.config.schema import Recipe, TrackSection
from retcon.core.errors import MissingExtra, TrackingWarning
from retcon.core.installing import how_to_install
from retcon.core.registry import Registry
from retcon.runs.metrics import rename
from retcon.store.whole import write_whole


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as trackers see it. project, name: from [track]. id: unique, and the same in all sessions of the run.
    folder: the run's. config: its recipe, section to key to value. step: the first that will be logged."""

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
        """Log a step's metrics, under the names that `track.names` chooses."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish: no further step will come in this session."""


Tracker.kinds = Registry("tracker", base=Tracker)


ID = "track.id"
"""File in the run folder: what trackers know the run by, in all of its sessions."""
WAITING = 1000
"""Steps that a tracker may be behind before further ones are dropped."""
PATIENCE_S = 20.0
"""Wall seconds that the end of a session waits for its trackers, all together."""

Line = tuple[int, dict[str, float]]


def find_trackers(section: TrackSection) -> list[type[Tracker]]:
    """Return the trackers in the recipe. Raises RecipeError for an unknown one, MissingExtra for one that is not
    installed."""
    found = [Tracker.kinds.find(name) for name in section.to]
    for name, kind in zip(section.to, found, strict=True):
        if lacking := [package for package in kind.needs if find_spec(package) is None]:
            raise MissingExtra(
                f"track.to names {name}, which needs {', '.join(lacking)}: pip install {' '.join(lacking)} (all that "
                f"come with Retcon: {how_to_install('track')})"
            )
    return found


@dataclass(frozen=True, slots=True)
class Tracking:
    """Forwarder of each step's metrics to the trackers; returns at once."""

    section: TrackSection
    threads: Sequence[_Thread]

    def __call__(self, metrics: Mapping[str, float | None]) -> None:
        step = int(metrics["step"] or 0)
        known = {name: value for name, value in metrics.items() if value is not None and name != "step"}
        line = rename(known, self.section.names)
        for thread in self.threads:
            thread.take(step, line)


@contextmanager
def tracking(recipe: Recipe, folder: Path) -> Iterator[Tracking]:
    """Open the recipe's trackers over the run in `folder`. At the end of the block they have PATIENCE_S to finish.

    Raises what `find_trackers` does. Warns (TrackingWarning) of a tracker that fails, is left behind or does not
    finish; metrics.jsonl has everything all the same.
    """
    section = recipe.track
    kinds = find_trackers(section)
    id = _id(folder) if kinds else ""
    config = recipe.model_dump(mode="json")
    threads = [
        _Thread(name, kind, TrackedRun(section.project, section.name or folder.name, id, folder, config, 0))
        for name, kind in zip(section.to, kinds, strict=True)
    ]
    try:
        yield Tracking(section, threads)
    finally:
        until = time.monotonic() + PATIENCE_S
        for thread in threads:
            thread.end()
        for thread in threads:
            thread.wait(until)


class _Thread:
    """Thread that makes and calls one tracker, and does not keep the program from ending."""

    def __init__(self, name: str, kind: type[Tracker], run: TrackedRun) -> None:
        self._name, self._kind, self._run = name, kind, run
        self._lines: queue.Queue[Line | None] = queue.Queue(WAITING)
        self._failed: str | None = None
        self._warned = False
        self._thread: threading.Thread | None = None

    def take(self, step: int, line: dict[str, float]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(step,), name=f"track-{self._name}", daemon=True)
            self._thread.start()
        if self._failed is not None:
            self._warn(self._failed)
            return
        try:
            self._lines.put_nowait((step, line))
        except queue.Full:
            self._warn(f"is {WAITING} steps behind: it gets no further ones for as long as it is")

    def end(self) -> None:
        if self._thread is not None and self._failed is None:
            while True:  # its place is made where the queue is full: what is left of it would not be sent in time
                try:
                    self._lines.put_nowait(None)
                    return
                except queue.Full:
                    self._lines.get_nowait()

    def wait(self, until: float) -> None:
        if self._thread is None:
            return
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._failed is not None:
            self._warn(self._failed)
        elif self._thread.is_alive():
            self._warn("has not taken everything within the time that the end of a run waits for it")

    def _work(self, first: int) -> None:
        try:
            tracker = self._kind(replace(self._run, step=first))
            while (line := self._lines.get()) is not None:
                tracker.log(*line)
            tracker.close()
        except Exception as error:  # noqa: BLE001 - others' code, over a network: whatever it raises, the run goes on
            self._failed = f"failed, and gets nothing more: {type(error).__name__}: {_first_line(error)}"

    def _warn(self, what: str) -> None:
        """Warn once, as a broken tracker would fail at every step."""
        if not self._warned:
            self._warned = True
            line = f"track.to: {self._name} {what}; metrics.jsonl has every step"
            warnings.warn(line, TrackingWarning, stacklevel=3)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _id(folder: Path) -> str:
    """The run's id for trackers, made up once."""
    file = folder / ID
    if not file.is_file():
        write_whole(file, secrets.token_hex(4) + "\n")
    return file.read_text(encoding="utf-8").strip()
