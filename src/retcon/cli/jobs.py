"""Parallel Retcon commands with live progress; Ctrl-C ends them all.

The commands themselves resume after an interrupt, and handle Ctrl-C, which may take time: a training finishes its step
and keeps it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.rule import Rule

from retcon.core.concurrency import cancel_all
from retcon.core.errors import RetconError
from retcon.core.types import Trajectory
from retcon.runs.progress import FILE, POLL_SECONDS, Lines, cost_file, format_duration
from retcon.store import jsonl

PATIENCE_SECONDS = 600.0  # for what a job that was asked to end still has to finish
GRACE_SECONDS = 5.0  # between asking a job to end at once and ending it
TAIL_LINES = 15
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, not between fork and exec


@dataclass(frozen=True, slots=True)
class Job:
    """One command. words: after `retcon`. threads: torch's and BLAS's. log: file for its output. needs: jobs that must
    finish first. late: further words, known only then. shows: trajectories that it writes meanwhile, of which the
    shortest repaired one is shown."""

    name: str
    words: tuple[str, ...]
    log: Path
    threads: int = 1
    needs: tuple[str, ...] = ()
    late: Callable[[], Sequence[str]] = tuple
    shows: Path | None = None

    @property
    def progress(self) -> Path:
        return self.log.with_suffix(".progress.json")

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the command's last run, children included; 0 where it was killed."""
        with contextlib.suppress(OSError, ValueError):
            return float(cost_file(self.progress).read_text(encoding="ascii"))
        return 0.0


class Board(Protocol):
    """Display of jobs."""

    def started(self, job: Job) -> None: ...

    def moved(self, job: Job, label: str, done: int, total: int) -> None: ...

    def ending(self, job: Job) -> None:
        """Show that the job is ending, and that Ctrl-C hurries it."""
        ...

    def ended(self, job: Job) -> None: ...

    def show(self, job: Job, trajectory: Trajectory) -> None:
        """Show a trajectory that the job's model has just made."""
        ...


class JobFailed(RetconError):
    """A job failed: the message names it, its log, and the log's end."""


def run_jobs(jobs: Sequence[Job], *, at_once: int, board: Board, on_end: Callable[[Job], None]) -> None:
    """Run jobs, `at_once` at a time. Each free place takes the first job whose needs are met; needs outside these jobs
    count as met. on_end: called after each success.

    The first failure ends all the others and raises JobFailed; Ctrl-C ends all and raises KeyboardInterrupt. Both let
    jobs finish what they must, for ten minutes at most; a second Ctrl-C does not. No process is left. Raises ValueError
    for jobs that wait for each other.
    """
    try:
        asyncio.run(_run_jobs(jobs, at_once, board, on_end))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run_jobs(jobs: Sequence[Job], at_once: int, board: Board, on_end: Callable[[Job], None]) -> None:
    waiting, to_come = list(jobs), {job.name for job in jobs}
    running: dict[asyncio.Task[None], Job] = {}
    ending, hurry = asyncio.Event(), asyncio.Event()
    with _handle_interrupts(ending, hurry):
        try:
            while waiting or running:
                ready = [job for job in waiting if to_come.isdisjoint(job.needs)]
                for job in ready[: at_once - len(running)]:
                    waiting.remove(job)
                    running[asyncio.create_task(_run(job, board, hurry))] = job
                if not running:
                    raise ValueError(f"{waiting[0].name} waits for {', '.join(waiting[0].needs)}, which waits for it")
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    job = running.pop(task)
                    task.result()
                    to_come.discard(job.name)
                    on_end(job)
        finally:
            ending.set()
            await cancel_all(running)


@contextlib.contextmanager
def _handle_interrupts(ending: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """Within, a Ctrl-C cancels this task and sets `ending`; once that is set, it sets `hurry`, and cancels no clean-up.

    Does nothing outside the main thread, where signals do not arrive, nor where this one is ignored (nohup).
    """
    before = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    if before is signal.SIG_IGN or main is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def press() -> None:
        if ending.is_set():
            hurry.set()
        else:
            ending.set()
            main.cancel()

    loop.add_signal_handler(signal.SIGINT, press)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


async def _run(job: Job, board: Board, hurry: asyncio.Event) -> None:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.progress.unlink(missing_ok=True)
    cost_file(job.progress).unlink(missing_ok=True)
    awaited = None if job.shows is None or job.shows.exists() else job.shows
    with job.log.open("ab") as log:
        begin = log.tell()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "retcon",
            *job.words,
            *job.late(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(os.environ, job),
            start_new_session=True,  # the terminal's Ctrl-C is for us; we pass it on
            preexec_fn=_prepare,
        )
        board.started(job)
        try:
            while process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), POLL_SECONDS)
                _report(job, board)
                if awaited is not None and awaited.exists():
                    from retcon.report.runs import shortest_repaired

                    if (found := shortest_repaired(jsonl.read(awaited))) is not None:
                        board.show(job, found)
                    awaited = None
        finally:
            if process.returncode is None:
                _send(process, signal.SIGINT)
                board.ending(job)
                await _end(process, hurry)
    if process.returncode:
        kept = "what is done is kept: once this is put right, the same command continues"
        end = f":\n{tail}" if (tail := _tail(job.log, begin)) else ": the log is empty"
        raise JobFailed(f"{job.name} {_describe_exit(process.returncode)}; {kept}. The end of {job.log}{end}")
    board.ended(job)


def _describe_exit(code: int) -> str:
    """Description of a process's failure. code: Python's, below 0 for a signal."""
    if code > 0:
        return f"failed with exit code {code}"
    hint = ", as the system does where memory runs out (--jobs says how many run at once)" * (code == -signal.SIGKILL)
    return f"was ended by signal {-code}, {signal.strsignal(-code)}{hint}"


def _environment(outer: Mapping[str, str], job: Job) -> dict[str, str]:
    threads = str(job.threads)
    return {
        **outer,
        FILE: str(job.progress),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
    }


def _prepare() -> None:
    """In the child: obey our SIGINT, also where it is ignored around us (nohup), and end with the parent (Linux), so
    that no second trainer works in its folder."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # at SIGTERM it would finish its step


def _report(job: Job, board: Board) -> None:
    try:
        report = json.loads(job.progress.read_bytes())
    except (OSError, ValueError):  # nothing reported yet
        return
    board.moved(job, report["label"], report["done"], report["total"])


async def _end(process: asyncio.subprocess.Process, hurry: asyncio.Event) -> None:
    """Wait for a process that got SIGINT. If that takes too long, or `hurry` is set, repeat SIGINT, which ends a
    training within its step, and then kill it."""
    ended, hurried = asyncio.create_task(process.wait()), asyncio.create_task(hurry.wait())
    await asyncio.wait({ended, hurried}, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is None:
            _send(process, signal_number)
            await asyncio.wait({ended}, timeout=GRACE_SECONDS)


def _send(process: asyncio.subprocess.Process, signal_number: signal.Signals) -> None:
    """Signal the process and its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal_number)


def _tail(path: Path, begin: int) -> str:
    """The log's last lines. begin: bytes of earlier sessions."""
    with path.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])


@dataclass(slots=True)
class _Progress:
    """Progress of a running job. began: its start. first, since: the count and time at which the current `label` was
    first seen; done, total, heard: the latest count, its total, and its time."""

    began: float
    label: str = ""
    first: int = 0
    since: float = 0.0
    done: int = 0
    total: int = 0
    heard: float = 0.0

    def left(self, now: float) -> float | None:
        """Seconds until the current label is done; None before it moves."""
        if self.done <= self.first:
            return None
        pace = (self.heard - self.since) / (self.done - self.first)
        return max((self.total - self.done) * pace - (now - self.heard), 0.0)


class Remaining:
    """Estimate of the time left, from a board's events. clock: seconds.

    A job is assumed to take as long as finished ones of its command (`train`, `eval`) in this session; before one has
    finished, as long as the first running one by its own progress.
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
        """Return the seconds until all are done; None if unknown."""
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


@contextmanager
def display_jobs(console: Console, jobs: Sequence[Job], at_once: int = 1) -> Iterator[Board]:
    """Show a board for these jobs while the block lasts. at_once: how many run in parallel."""
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
    """Board with a bar per job and in total, with time left. Waiting jobs are shown where they are few."""

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
        self._progress.update(self._all, description=_time_left(self._remaining))

    def ending(self, job: Job) -> None:
        self._progress.console.out(f"{job.name}: {ENDING}", highlight=False)
        self._progress.update(self._bars[job.name], description="ending")

    def ended(self, job: Job) -> None:
        task = self._progress.tasks[self._bars[job.name]]
        total = task.total or 1
        done = "[green]done"
        self._remaining.ended(job)
        self._progress.update(self._bars[job.name], description=done, completed=total, total=total, visible=self._few)
        self._progress.update(self._all, description=_time_left(self._remaining), advance=1)

    def show(self, job: Job, trajectory: Trajectory) -> None:
        _print_repair(self._progress.console, job, trajectory)


class LineBoard:
    """Board with lines per tenth and end of jobs, with time left."""

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
        left = _time_left(self._remaining) if self._done < self._jobs else ""
        self._say(f"{job.name}: done ({self._done} of {self._jobs}){', ' * bool(left)}{left}")

    def show(self, job: Job, trajectory: Trajectory) -> None:
        _print_repair(self._console, job, trajectory)

    def _say(self, line: str) -> None:
        self._console.out(line, highlight=False)


def _print_repair(console: Console, job: Job, trajectory: Trajectory) -> None:
    from retcon.report.transcript import show_purification

    console.print(Rule(f"{job.name}: the first repair by the model so far", align="left"))
    console.print(show_purification(trajectory))


def _time_left(remaining: Remaining) -> str:
    """The time left, or ""."""
    seconds = remaining.seconds()
    return "" if seconds is None else f"about {format_duration(seconds)} left"
