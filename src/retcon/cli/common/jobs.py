"""Several Retcon commands at once, each a process, with live progress; Ctrl-C ends them all.

A job that was ended goes on where it was when it is started again: that is the commands' own doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retcon.cli.common.progress import FILE
from retcon.core.errors import RetconError
from retcon.core.together import cancelled

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0  # between asking a job to end and ending it
TAIL_LINES = 15
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded here, not between fork and exec


@dataclass(frozen=True, slots=True)
class Job:
    """One command. words: after `retcon`. threads: torch's and BLAS's. log: gets what the command prints. needs: names
    of jobs that must be over first. late: further words, known only then."""

    name: str
    words: tuple[str, ...]
    log: Path
    threads: int = 1
    needs: tuple[str, ...] = ()
    late: Callable[[], Sequence[str]] = tuple

    @property
    def progress(self) -> Path:
        return self.log.with_suffix(".progress.json")


class Board(Protocol):
    """Where jobs are shown."""

    def started(self, job: Job) -> None: ...

    def moved(self, job: Job, label: str, done: int, total: int) -> None: ...

    def ended(self, job: Job) -> None: ...


class JobFailed(RetconError):
    """A job ended with an error: names it, its log, and the log's end."""


def run_jobs(jobs: Sequence[Job], *, at_once: int, board: Board, on_end: Callable[[Job], None]) -> None:
    """Runs jobs, `at_once` at a time: whenever there is a place, the first of those left that need nothing that is to
    come. A need that is not among these jobs is over already. on_end: after each success.

    The first failure ends all the others and raises JobFailed; Ctrl-C ends all and raises KeyboardInterrupt. Raises
    ValueError for jobs that wait for each other.
    """
    asyncio.run(_run_jobs(jobs, at_once, board, on_end))


async def _run_jobs(jobs: Sequence[Job], at_once: int, board: Board, on_end: Callable[[Job], None]) -> None:
    waiting, to_come = list(jobs), {job.name for job in jobs}
    running: dict[asyncio.Task[None], Job] = {}
    try:
        while waiting or running:
            ready = [job for job in waiting if to_come.isdisjoint(job.needs)]
            for job in ready[: at_once - len(running)]:
                waiting.remove(job)
                running[asyncio.create_task(_run(job, board))] = job
            if not running:
                raise ValueError(f"{waiting[0].name} waits for {', '.join(waiting[0].needs)}, which waits for it")
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                job = running.pop(task)
                task.result()
                to_come.discard(job.name)
                on_end(job)
    finally:
        await cancelled(running)


async def _run(job: Job, board: Board) -> None:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.progress.unlink(missing_ok=True)
    with job.log.open("ab") as log:
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
        finally:
            await _end(process)
    if process.returncode:
        raise JobFailed(
            f"{job.name} failed with exit code {process.returncode}; the end of {job.log}:\n{_tail(job.log)}"
        )
    board.ended(job)


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
    """In the child: obey our SIGINT, also where it is ignored around us (nohup); end when the parent ends, however it
    does (Linux), lest a second trainer comes to its folder."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _report(job: Job, board: Board) -> None:
    try:
        told = json.loads(job.progress.read_text())
    except (OSError, ValueError):  # nothing told yet
        return
    board.moved(job, told["label"], told["done"], told["total"])


async def _end(process: asyncio.subprocess.Process) -> None:
    """As Ctrl-C would, then the hard way."""
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_SECONDS)


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])
