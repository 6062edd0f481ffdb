"""Stores the rollouts of a run's steps beside the training, in a thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from retcon.core.errors import RetconError
from retcon.core.types import Trajectory
from retcon.store.jsonl import line_of
from retcon.store.members import default_suffix, write_members
from retcon.store.whole import explained

LOG = logging.getLogger(__name__)
PENDING_TOKENS = 4_000_000
"""Tokens of rollouts that wait to be written at most: about 300 MB in memory."""
KEPT_EVERY = 10
"""Steps that are removed last are the multiples of this, where a run has more rollouts than `run.keep_gb` allows."""


def step_file(folder: Path, step: int) -> Path:
    """The file of a step's rollouts in `trajectories/`, whatever its compression; where it will be if there is none."""
    name = f"step-{step:06d}.jsonl"
    there = (folder / f"{name}{suffix}" for suffix in ("", ".zst", ".gz"))
    return next((path for path in there if path.exists()), folder / f"{name}{default_suffix()}")


def write_step(folder: Path, step: int, rollouts: Iterable[Trajectory]) -> Path:
    """Write a step's rollouts in place of what is there of it. Raises StorageError."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    old = step_file(folder, step)
    path = folder / f"step-{step:06d}.jsonl{default_suffix()}"
    write_members(path, map(line_of, rollouts))
    if old != path:
        old.unlink(missing_ok=True)
    return path


def steps_to_remove(sizes: dict[int, int], budget: int) -> list[int]:
    """The steps to remove so that the files, by step, fit the budget in bytes; in the order of their removal.

    The oldest go first, but the newest step never; multiples of KEPT_EVERY and the first step go when no others are
    left.
    """
    total, found = sum(sizes.values()), []
    older = sorted(sizes)[:-1]
    marked = {step for step in older if step % KEPT_EVERY == 0 or step == older[0]}
    for step in [*(s for s in older if s not in marked), *(s for s in older if s in marked)]:
        if total <= budget:
            break
        total -= sizes[step]
        found.append(step)
    return found


@dataclass(slots=True)
class _Step:
    number: int
    tokens: int
    rollouts: Callable[[], Iterator[Trajectory]]


class RolloutStore:
    """Writes `trajectories/step-000001.jsonl.zst` and so on in a thread; a training never waits for the disk.

    What no longer fits in memory is not stored, and a disk that refuses a file ends the storing: both are said once,
    and the training goes on. Without zstandard the files are `.gz`. after: called in the thread with each new file.
    """

    def __init__(self, folder: Path, keep_gb: float, after: Callable[[Path], None] | None = None) -> None:
        self.folder, self.budget, self._after = folder, int(keep_gb * 1e9), after
        self._waiting: deque[_Step] = deque()
        self._tokens = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = self._failed = self._skipped = False

    def add(self, step: int, rollouts: Callable[[], Iterator[Trajectory]], tokens: int) -> None:
        """Store a step's rollouts soon. tokens: that they hold in memory."""
        if not self.budget or self._failed:
            return
        with self._changed:
            if self._waiting and self._tokens + tokens > PENDING_TOKENS:
                if not self._skipped:
                    LOG.warning("%s: the disk is slower than the training: rollouts of step %d and perhaps of others "
                                "are not stored", self.folder, step)  # fmt: skip
                self._skipped = True
                return
            self._waiting.append(_Step(step, tokens, rollouts))
            self._tokens += tokens
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="rollouts", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until all that was added is on the disk."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if not self._waiting:
                    return
                step = self._waiting[0]
            if not self._failed:
                self._store(step)
            with self._changed:
                self._waiting.popleft()
                self._tokens -= step.tokens
                self._changed.notify_all()

    def _store(self, step: _Step) -> None:
        try:
            path = write_step(self.folder, step.number, step.rollouts())
            self._thin()
        except (RetconError, OSError) as error:
            self._failed = True
            LOG.warning("rollouts are not stored from step %d on; the training goes on: %s", step.number, error)
            return
        if self._after is not None:
            self._after(path)

    def _thin(self) -> None:
        files = {int(path.name[5:11]): path for path in self.folder.glob("step-??????.jsonl*")}
        for step in steps_to_remove({step: path.stat().st_size for step, path in files.items()}, self.budget):
            with suppress(FileNotFoundError):
                files[step].unlink()
