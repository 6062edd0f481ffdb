"""Where running jobs are shown: bars in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from retcon.cli.common.jobs import Board, Job
from retcon.cli.common.progress import Lines, duration
from retcon.cli.common.remaining import Remaining


@contextmanager
def board_for(console: Console, jobs: Sequence[Job], at_once: int = 1) -> Iterator[Board]:
    """A board for these jobs, of which so many run at once, shown as long as the block lasts."""
    remaining = Remaining(jobs, at_once)
    if not console.is_terminal:
        yield LineBoard(console, len(jobs), remaining)
        return
    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        yield BarBoard(progress, jobs, remaining)


FEW = 12
"""Jobs that each have a bar from the beginning to the end. Of more only those that run do."""


ENDING = "finishes its step and keeps it first; Ctrl-C again ends it at once"


class BarBoard:
    """A bar a job, those that wait among them where they are few, and one of all, with the time that is left."""

    def __init__(self, progress: Progress, jobs: Sequence[Job], remaining: Remaining) -> None:
        self._progress = progress
        self._remaining = remaining
        self._few = len(jobs) <= FEW
        self._all = progress.add_task("", total=len(jobs), name="all", visible=len(jobs) > 1)
        self._bars: dict[str, TaskID] = {
            job.name: progress.add_task("waiting", total=None, start=False, name=job.name, visible=self._few)
            for job in jobs
        }

    def started(self, job: Job) -> None:
        self._remaining.started(job)
        self._progress.start_task(self._bars[job.name])
        self._progress.update(self._bars[job.name], description="starting", visible=True)

    def moved(self, job: Job, label: str, done: int, total: int) -> None:
        self._remaining.moved(job, label, done, total)
        self._progress.update(self._bars[job.name], description=escape(label), completed=done, total=total)
        self._progress.update(self._all, description=_left(self._remaining))

    def ending(self, job: Job) -> None:
        self._progress.console.out(f"{job.name}: {ENDING}", highlight=False)
        self._progress.update(self._bars[job.name], description="ending")

    def ended(self, job: Job) -> None:
        task = self._progress.tasks[self._bars[job.name]]
        total = task.total or 1
        done = "[green]done"
        self._remaining.ended(job)
        self._progress.update(self._bars[job.name], description=done, completed=total, total=total, visible=self._few)
        self._progress.update(self._all, description=_left(self._remaining), advance=1)


class LineBoard:
    """A line for every tenth of a job's way, and one at its end, with the time that is left for all."""

    def __init__(self, console: Console, jobs: int, remaining: Remaining) -> None:
        self._console = console
        self._jobs, self._done = jobs, 0
        self._remaining = remaining
        self._lines: dict[tuple[str, str], Lines] = {}

    def started(self, job: Job) -> None:
        self._remaining.started(job)
        self._say(f"{job.name}: started")

    def moved(self, job: Job, label: str, done: int, total: int) -> None:
        self._remaining.moved(job, label, done, total)
        key = job.name, label
        if key not in self._lines:
            self._lines[key] = Lines(f"{job.name}: {label}", self._say)
        self._lines[key](done, total)

    def ending(self, job: Job) -> None:
        self._say(f"{job.name}: {ENDING}")

    def ended(self, job: Job) -> None:
        self._done += 1
        self._remaining.ended(job)
        left = _left(self._remaining) if self._done < self._jobs else ""
        self._say(f"{job.name}: done ({self._done} of {self._jobs}){', ' * bool(left)}{left}")

    def _say(self, line: str) -> None:
        self._console.out(line, highlight=False)


def _left(remaining: Remaining) -> str:
    """The time left, empty where nobody knows."""
    seconds = remaining.seconds()
    return "" if seconds is None else f"about {duration(seconds)} left"
