"""Showing many jobs, and keeping others out of a folder that is worked on."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from retcon.cli.jobs import FEW, Job, display_jobs
from retcon.core.errors import CheckpointError
from retcon.runs.folder import RunFolder
from retcon.store.whole import lock_folder


def shown(count: int, *, terminal: bool) -> str:
    """What is seen of so many jobs after the first one ended and while the second one runs."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    jobs = [Job(f"job-{n}", (), Path("log")) for n in range(count)]
    with display_jobs(console, jobs) as board:
        board.started(jobs[0])
        board.moved(jobs[0], "working", 1, 2)
        board.ended(jobs[0])
        board.started(jobs[1])
        board.moved(jobs[1], "measuring", 3, 4)
    return text.getvalue()


def test_few_jobs_all_have_a_bar() -> None:
    said = shown(FEW, terminal=True)
    assert all(f"job-{n} " in said for n in range(FEW))
    assert "waiting" in said


def test_two_commands_are_not_at_work_in_one_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with lock_folder(out), pytest.raises(CheckpointError, match="another command is at work"), lock_folder(out):
        pass
    with lock_folder(out):  # and then it is free again
        pass


def test_what_a_killed_training_left_half_written_goes_when_it_goes_on(tmp_path: Path) -> None:
    left = [tmp_path / folder / f".partial-7-{folder}" for folder in ("", "checkpoints", "trajectories")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with RunFolder(tmp_path).at_work():
        assert not any(path.exists() for path in left)
