"""Jobs that finish something when they are asked to end, as a training does its step: how long they may."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from retcon.cli import jobs as module
from retcon.cli.jobs import Job, JobFailed, run_jobs

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
