"""Where running jobs are shown: bars in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from retcon.cli.common.jobs import Board, Job
from retcon.cli.common.progress import Lines


@contextmanager
def board_for(console: Console, jobs: Sequence[Job]) -> Iterator[Board]:
    """A board for these jobs, shown as long as the block lasts."""
    if not console.is_terminal:
        yield LineBoard(console, len(jobs))
        return
    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.description}"),
    )
    with Progress(*columns, console=console) as progress:
        yield BarBoard(progress, jobs)


FEW = 12
"""Jobs that each have a bar from the beginning to the end. Of more only those that run do, and there is one of all."""


ENDING = "finishes its step and keeps it first; Ctrl-C again ends it at once"


class BarBoard:
    """A bar a job, those that wait among them where they are few."""

    def __init__(self, progress: Progress, jobs: Sequence[Job]) -> None:
        self._progress = progress
        self._few = len(jobs) <= FEW
        self._all = progress.add_task("", total=len(jobs), name="all", visible=not self._few)
        self._bars: dict[str, TaskID] = {
            job.name: progress.add_task("waiting", total=None, start=False, name=job.name, visible=self._few)
            for job in jobs
        }

    def started(self, job: Job) -> None:
        self._progress.start_task(self._bars[job.name])
        self._progress.update(self._bars[job.name], description="starting", visible=True)

    def moved(self, job: Job, label: str, done: int, total: int) -> None:
        self._progress.update(self._bars[job.name], description=escape(label), completed=done, total=total)

    def ending(self, job: Job) -> None:
        self._progress.console.out(f"{job.name}: {ENDING}", highlight=False)
        self._progress.update(self._bars[job.name], description="ending")

    def ended(self, job: Job) -> None:
        task = self._progress.tasks[self._bars[job.name]]
        total = task.total or 1
        done = "[green]done"
        self._progress.update(self._bars[job.name], description=done, completed=total, total=total, visible=self._few)
        self._progress.advance(self._all)


class LineBoard:
    """A line for every tenth of a job's way."""

    def __init__(self, console: Console, jobs: int) -> None:
        self._console = console
        self._jobs, self._done = jobs, 0
        self._lines: dict[tuple[str, str], Lines] = {}

    def started(self, job: Job) -> None:
        self._say(f"{job.name}: started")

    def moved(self, job: Job, label: str, done: int, total: int) -> None:
        key = job.name, label
        if key not in self._lines:
            self._lines[key] = Lines(f"{job.name}: {label}", self._say)
        self._lines[key](done, total)

    def ending(self, job: Job) -> None:
        self._say(f"{job.name}: {ENDING}")

    def ended(self, job: Job) -> None:
        self._done += 1
        self._say(f"{job.name}: done ({self._done} of {self._jobs})")

    def _say(self, line: str) -> None:
        self._console.out(line, highlight=False)
