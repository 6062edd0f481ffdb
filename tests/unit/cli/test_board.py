"""What a board says of jobs that are asked to end."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from retcon.cli.jobs import Job, display_jobs


@pytest.mark.parametrize("terminal", [False, True])
def test_a_job_that_still_finishes_its_step_is_reported_with_what_ends_it_at_once(terminal: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    job = Job("saar/seed-0", ("train",), Path("saar.log"))
    with display_jobs(console, [job]) as board:
        board.started(job)
        board.ending(job)
    said = console.file.getvalue()
    assert "saar/seed-0: finishes its step and keeps it first; Ctrl-C again ends it at once\n" in said
