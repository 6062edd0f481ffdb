"""Several Retcon commands at once, each a process, with live progress; Ctrl-C ends them all.

A job that was ended goes on where it was when it is started again: that is the commands' own doing. So is what they do
at Ctrl-C, which may take its time: a training finishes its step and keeps it.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from retcon.cli.common.progress import FILE, POLL_SECONDS
from retcon.core.errors import RetconError
from retcon.core.together import cancelled

PATIENCE_SECONDS = 600.0  # for what a job that was asked to end still has to finish
GRACE_SECONDS = 5.0  # between asking a job to end at once and ending it
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

    def ending(self, job: Job) -> None:
        """It was asked to end, and may first finish and keep what it is at; one more Ctrl-C ends it at once."""
        ...

    def ended(self, job: Job) -> None: ...


class JobFailed(RetconError):
    """A job ended with an error: names it, its log, and the log's end."""


def run_jobs(jobs: Sequence[Job], *, at_once: int, board: Board, on_end: Callable[[Job], None]) -> None:
    """Runs jobs, `at_once` at a time: whenever there is a place, the first of those left that need nothing that is to
    come. A need that is not among these jobs is over already. on_end: after each success.

    The first failure ends all the others and raises JobFailed; Ctrl-C ends all and raises KeyboardInterrupt. Both let
    them finish what they must, for ten minutes at most; Ctrl-C during that does not. No process is left. Raises
    ValueError for jobs that wait for each other.
    """
    try:
        asyncio.run(_run_jobs(jobs, at_once, board, on_end))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run_jobs(jobs: Sequence[Job], at_once: int, board: Board, on_end: Callable[[Job], None]) -> None:
    waiting, to_come = list(jobs), {job.name for job in jobs}
    running: dict[asyncio.Task[None], Job] = {}
    ending, hurry = asyncio.Event(), asyncio.Event()
    with _pressed(ending, hurry):
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
            await cancelled(running)


@contextlib.contextmanager
def _pressed(ending: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
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
        finally:
            if process.returncode is None:
                _send(process, signal.SIGINT)
                board.ending(job)
                await _end(process, hurry)
    if process.returncode:
        kept = "what is done is kept: once this is put right, the same command continues"
        said = f":\n{tail}" if (tail := _tail(job.log, begin)) else ": it has nothing of this"
        raise JobFailed(f"{job.name} {_how(process.returncode)}; {kept}. The end of {job.log}{said}")
    board.ended(job)


def _how(code: int) -> str:
    """What became of a process that failed. code: as Python has it, below 0 where a signal ended it."""
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
    """In the child: obey our SIGINT, also where it is ignored around us (nohup); end when the parent ends, however it
    does (Linux), lest a second trainer comes to its folder."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _report(job: Job, board: Board) -> None:
    try:
        told = json.loads(job.progress.read_bytes())
    except (OSError, ValueError):  # nothing told yet
        return
    board.moved(job, told["label"], told["done"], told["total"])


async def _end(process: asyncio.subprocess.Process, hurry: asyncio.Event) -> None:
    """Wait for a process that was told SIGINT; where that takes too long, or `hurry` is set, tell it again, as the
    second Ctrl-C that ends a training within its step, and then the hard way."""
    ended, hurried = asyncio.create_task(process.wait()), asyncio.create_task(hurry.wait())
    await asyncio.wait({ended, hurried}, timeout=PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is None:
            _send(process, signal_number)
            await asyncio.wait({ended}, timeout=GRACE_SECONDS)


def _send(process: asyncio.subprocess.Process, signal_number: signal.Signals) -> None:
    """To the process and what it started in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal_number)


def _tail(path: Path, begin: int) -> str:
    """begin: bytes of earlier sessions."""
    with path.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return "\n".join(lines[-TAIL_LINES:])
