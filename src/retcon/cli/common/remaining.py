"""How long jobs will still take, by what those of this session have taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from retcon.cli.common.jobs import Job


@dataclass(slots=True)
class _Progress:
    """How far a job that runs has come. began: when it was started. first, since: of what it is at (`label`), how far
    it was when that was first heard of, and when; done, total, heard: how far it is, of how much, and since when."""

    began: float
    label: str = ""
    first: int = 0
    since: float = 0.0
    done: int = 0
    total: int = 0
    heard: float = 0.0

    def left(self, now: float) -> float | None:
        """Seconds until it is through with what it is at; None where it has not been seen to move."""
        if self.done <= self.first:
            return None
        pace = (self.heard - self.since) / (self.done - self.first)
        return max((self.total - self.done) * pace - (now - self.heard), 0.0)


class Remaining:
    """Takes what a board is told. clock: seconds.

    A job is taken to last as long as those of its command (`train`, `eval`) that have ended in this session, or where
    none has, as the first of them that runs will by its own progress.
    """

    def __init__(self, jobs: Sequence[Job], at_once: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._waiting = {job.name: job for job in jobs}
        self._running: dict[str, tuple[Job, _Progress]] = {}
        self._took: dict[tuple[str, ...], list[float]] = {}
        self._at_once = at_once
        self._clock = clock

    def started(self, job: Job) -> None:
        del self._waiting[job.name]
        self._running[job.name] = job, _Progress(self._clock())

    def moved(self, job: Job, label: str, done: int, total: int) -> None:
        now, (_, progress) = self._clock(), self._running[job.name]
        if label != progress.label:
            progress.label, progress.first, progress.since, progress.done = label, done, now, done
        elif done != progress.done:
            progress.done, progress.total, progress.heard = done, total, now

    def ended(self, job: Job) -> None:
        _, progress = self._running.pop(job.name)
        self._took.setdefault(job.words[:1], []).append(self._clock() - progress.began)

    def seconds(self) -> float | None:
        """Until all are done; None where nothing is known yet of a command that is still to run."""
        now = self._clock()
        lasts = {command: fmean(took) for command, took in self._took.items()}
        running: list[float | None] = []
        for job, progress in self._running.values():
            left = progress.left(now)
            if left is not None:
                lasts.setdefault(job.words[:1], now - progress.began + left)
            elif (whole := lasts.get(job.words[:1])) is not None:
                left = max(whole - (now - progress.began), 0.0)
            running.append(left)
        found = [*running, *(lasts.get(job.words[:1]) for job in self._waiting.values())]
        known = [seconds for seconds in found if seconds is not None]
        return None if len(known) < len(found) else max([sum(known) / self._at_once, *known], default=0.0)
