"""How long jobs will still take, by what those of this session have taken."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from retcon.cli.jobs import Job, Remaining, display_jobs


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def jobs_of(*commands: str) -> list[Job]:
    return [Job(f"{command}-{n}", (command, f"{n}"), Path("log")) for n, command in enumerate(commands)]


def test_a_job_that_begins_another_part_is_reckoned_by_that_part_alone() -> None:
    clock, jobs = Clock(), jobs_of("sft")
    remaining = Remaining(jobs, 1, clock=clock)
    remaining.started(jobs[0])
    remaining.moved(jobs[0], "writing demonstrations", 1, 5000)
    clock.now += 50
    remaining.moved(jobs[0], "writing demonstrations", 5000, 5000)
    remaining.moved(jobs[0], "training", 1, 101)
    assert remaining.seconds() is None
    clock.now += 10
    remaining.moved(jobs[0], "training", 11, 101)
    assert remaining.seconds() == pytest.approx(90)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_board_says_how_long_all_will_take(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, color_system=None)
    jobs = jobs_of("train", "train")
    with display_jobs(console, jobs, 2) as board:
        for job in jobs:
            board.started(job)
            board.moved(job, "training", 1, 80)
            board.ended(job)
    assert re.search(r"about \d+:\d\d left", console.file.getvalue())
