"""Several commands at once, as real processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.comparing import FIX, repaired, trajectory

from retcon.cli import jobs as module
from retcon.cli.jobs import Job, JobFailed, run_jobs
from retcon.core.types import Trajectory
from retcon.store import jsonl


class Record:
    """A board that keeps what it was told, and calls `on_start` when a job of that name starts."""

    def __init__(self, **on_start: threading.Event) -> None:
        self.told: list[tuple[str, str]] = []
        self.on_start = on_start

    def started(self, job: Job) -> None:
        self.told.append(("started", job.name))
        if job.name in self.on_start:
            self.on_start[job.name].set()

    def moved(self, job: Job, label: str, done: int, total: int) -> None:
        self.told.append((f"{label} {done}/{total}", job.name))

    def ending(self, job: Job) -> None:
        self.told.append(("ending", job.name))

    def ended(self, job: Job) -> None:
        self.told.append(("ended", job.name))

    def show(self, job: Job, trajectory: Trajectory) -> None:
        self.told.append((f"shows {trajectory.id}", job.name))


@pytest.fixture
def blocked(tmp_path: Path) -> Job:
    """A job that waits for a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe")
    return Job("blocked", ("show", str(tmp_path / "pipe")), tmp_path / "logs" / "blocked.log")


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path("src").resolve()))


def version(name: str, folder: Path, *needs: str) -> Job:
    return Job(name, ("--version",), folder / "logs" / f"{name}.log", needs=needs)


def test_a_job_waits_for_what_it_needs_and_others_take_its_place(tmp_path: Path) -> None:
    board, ended = Record(), []
    jobs = [version("a", tmp_path), version("b", tmp_path, "a", "done before"), version("c", tmp_path)]
    run_jobs(jobs, at_once=2, board=board, on_end=lambda job: ended.append(job.name))
    assert sorted(ended) == ["a", "b", "c"]
    assert board.told.index(("ended", "a")) < board.told.index(("started", "b"))
    assert board.told[:2] == [("started", "a"), ("started", "c")]
    assert "retcon 0." in (tmp_path / "logs" / "b.log").read_text()


def test_the_first_repair_is_shown_once_it_is_written_and_the_cost_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, made = Record(), tmp_path / "step.jsonl"
    jsonl.write(tmp_path / "made.jsonl", [trajectory("a/0", FIX), repaired("b/0"), trajectory("c/0", FIX)])
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nmv {tmp_path}/made.jsonl {made}\necho 1.5 > {tmp_path}/a.progress.cpu_s\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    job = Job("a", (), tmp_path / "a.log", shows=made)
    run_jobs([job], at_once=1, board=board, on_end=lambda _: None)
    run_jobs([job], at_once=1, board=board, on_end=lambda _: None)
    assert [told for told, _ in board.told] == ["started", "shows b/0", "ended", "started", "ended"]
    assert job.cpu_s == 1.5


def test_words_that_come_late_are_asked_for_when_what_is_needed_is_over(tmp_path: Path) -> None:
    first = version("a", tmp_path)
    late = Job("b", ("show",), tmp_path / "b.log", needs=("a",), late=lambda: (f"{first.log.is_file()}.jsonl",))
    with pytest.raises(JobFailed, match=r"True\.jsonl does not exist"):
        run_jobs([late, first], at_once=2, board=Record(), on_end=lambda _: None)


def test_jobs_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a waits for b"):
        run_jobs([version("a", tmp_path, "b"), version("b", tmp_path, "a")], at_once=1, board=Record(), on_end=print)


def test_a_failure_is_reported_with_its_log_and_ends_the_others(tmp_path: Path, blocked: Job) -> None:
    board = Record()
    failing = Job("failing", ("show", str(tmp_path / "absent.jsonl")), tmp_path / "logs" / "failing.log")
    with pytest.raises(JobFailed, match=r"failing failed with exit code 2(.|\n)*absent\.jsonl does not exist"):
        run_jobs(
            [failing, blocked, version("after", tmp_path, "failing")], at_once=2, board=board, on_end=lambda _: None
        )
    assert ("started", "blocked") in board.told
    assert ("ended", "blocked") not in board.told
    assert ("started", "after") not in board.told


def test_a_failure_is_reported_with_what_this_job_said_and_not_an_earlier_one(tmp_path: Path, blocked: Job) -> None:
    """Logs grow from session to session: what was put right since is no reason of another end."""
    blocked.log.parent.mkdir()
    blocked.log.write_text("error: there is no such model\n")

    class Kills(Record):
        def started(self, job: Job) -> None:
            (process,) = _that_run(str(tmp_path / "pipe"))
            os.kill(int(process.name), signal.SIGKILL)

    with pytest.raises(JobFailed) as told:
        run_jobs([blocked], at_once=1, board=Kills(), on_end=lambda _: None)
    assert "no such model" not in str(told.value)
    assert str(told.value).endswith(f"{blocked.log}: the log is empty")
    assert blocked.log.read_text() == "error: there is no such model\n"


def test_a_job_that_is_killed_is_reported_as_such_and_what_it_may_be_for(tmp_path: Path, blocked: Job) -> None:
    """Its log says nothing of it."""

    class Kills(Record):
        def started(self, job: Job) -> None:
            (process,) = _that_run(str(tmp_path / "pipe"))
            os.kill(int(process.name), signal.SIGKILL)

    with pytest.raises(JobFailed, match=r"blocked was ended by signal 9, Killed, as .* memory runs out .*--jobs"):
        run_jobs([blocked], at_once=1, board=Kills(), on_end=lambda _: None)


def test_ctrl_c_ends_all_that_runs(tmp_path: Path, blocked: Job) -> None:
    running = threading.Event()

    def press() -> None:
        running.wait()
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([blocked], at_once=1, board=Record(blocked=running), on_end=lambda _: None)
    pressing.join()
    assert not _that_run(str(tmp_path / "pipe"))


def test_jobs_obey_ctrl_c_also_where_it_is_ignored_around_them(tmp_path: Path, blocked: Job) -> None:
    """As under nohup: a job that ends by itself has written its checkpoint, one that must be killed has not."""
    ignored: list[int] = []

    class Look(Record):
        def started(self, job: Job) -> None:
            if job is blocked:
                (process,) = _that_run(str(tmp_path / "pipe"))
                line = next(line for line in (process / "status").read_text().splitlines() if line.startswith("SigIgn"))
                ignored.append(int(line.split()[1], 16))

    failing = Job("failing", ("show", str(tmp_path / "absent.jsonl")), tmp_path / "logs" / "failing.log")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(JobFailed):
            run_jobs([blocked, failing], at_once=2, board=Look(), on_end=lambda _: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not ignored[0] & 1 << signal.SIGINT - 1


def _that_run(word: str) -> list[Path]:
    """The processes, as folders of /proc, that have `word` in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word in (folder / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                found.append(folder)
        except OSError:  # it ended while we looked
            continue
    return found


# Jobs that finish something when they are asked to end, as a training does its step: how long they may.


STAND_IN = """
import json, os, signal, sys
name, pipe, kept = sys.argv[3:]
if name == "failing":
    open(pipe).read()
    sys.exit(3)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
with open(os.environ["RETCON_PROGRESS"], "w") as file:
    json.dump({"label": str(os.getpid()), "done": 0, "total": 1}, file)
signal.sigwait([signal.SIGINT])
open(pipe).read()
open(kept, "w").close()
"""
"""At SIGINT it waits until something is written to its pipe, and then writes its file; further ones do nothing."""


class Board:
    """Calls `begun` once a job has said that it runs, and `asked` once it was asked to end."""

    def __init__(self, begun: Callable[[], None], asked: Callable[[], None]) -> None:
        self._begun, self._asked = begun, asked
        self.pid: int | None = None

    def started(self, job: Job) -> None:
        """Not of interest."""

    def moved(self, job: Job, label: str, done: int, total: int) -> None:
        if self.pid is None:
            self.pid = int(label)
            self._begun()

    def ending(self, job: Job) -> None:
        self._asked()

    def ended(self, job: Job) -> None:
        """Not of interest."""

    @property
    def left(self) -> bool:
        return self.pid is None or Path(f"/proc/{self.pid}").exists()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Job]:
    """Makes a job of a stand-in for the command, with the pipe `NAME.pipe` and the file `NAME.kept`."""
    program, script = tmp_path / "stand_in.py", tmp_path / "python"
    program.write_text(STAND_IN)
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {program} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.05)

    def make(name: str) -> Job:
        os.mkfifo(tmp_path / f"{name}.pipe")
        words = (name, str(tmp_path / f"{name}.pipe"), str(tmp_path / f"{name}.kept"))
        return Job(name, words, tmp_path / f"{name}.log")

    return make


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_lets_a_job_finish_what_it_is_at(tmp_path: Path, job: Callable[[str], Job]) -> None:
    board = Board(press, lambda: (tmp_path / "training.pipe").open("w").close())
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("training")], at_once=1, board=board, on_end=lambda _: None)
    assert (tmp_path / "training.kept").exists()
    assert not board.left
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_does_not(tmp_path: Path, job: Callable[[str], Job]) -> None:
    board = Board(press, press)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("training")], at_once=1, board=board, on_end=lambda _: None)
    assert not (tmp_path / "training.kept").exists()
    assert not board.left


def test_nor_has_it_endless_time(tmp_path: Path, job: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    board = Board(press, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job("training")], at_once=1, board=board, on_end=lambda _: None)
    assert not board.left


@pytest.mark.parametrize("hurried", [False, True])
def test_the_failure_of_another_lets_it_finish_too_unless_ctrl_c_comes(
    tmp_path: Path, job: Callable[[str], Job], hurried: bool
) -> None:
    def write(name: str) -> None:
        (tmp_path / name).open("w").close()

    board = Board(lambda: write("failing.pipe"), press if hurried else lambda: write("training.pipe"))
    with pytest.raises(JobFailed, match="failing failed with exit code 3"):
        run_jobs([job("training"), job("failing")], at_once=2, board=board, on_end=lambda _: None)
    assert (tmp_path / "training.kept").exists() is not hurried
    assert not board.left
