"""What a command tells whoever started it, what it gives a job, and what it says of demonstrations that were made."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from retcon.cli.jobs import Job, run_jobs
from retcon.cli.learn import _result_of_demos
from retcon.core.types import Trajectory
from retcon.runs.progress import FILE, ProgressFile, show_progress, show_steps
from retcon.train.demos.making import Summary


def test_who_started_a_command_reads_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress.json"
    monkeypatch.setenv(FILE, str(file))
    with show_steps("training", 80) as told:
        told({"step": 3, "reward": 0.5})
        assert json.loads(file.read_text()) == {"label": "training", "done": 3, "total": 80}
    with show_progress("writing demonstrations") as tell:
        tell(5, 40)
    assert json.loads(file.read_text()) == {"label": "writing demonstrations", "done": 5, "total": 40}


def test_who_started_a_command_is_told_no_oftener_than_it_looks(tmp_path: Path) -> None:
    """Of thousands of rollouts each would wait for the disk."""
    now, file = [0.0], tmp_path / "progress.json"
    tell, told = ProgressFile(file, "evaluating", clock=lambda: now[0]), []
    for at, done in ((0.0, 1), (0.1, 2), (0.3, 3), (0.31, 4), (0.32, 5)):
        now[0] = at
        tell(done, 5)
        told.append(json.loads(file.read_text())["done"])
    assert told == [1, 1, 3, 3, 5], "the last one is told at once"


class Silent:
    def started(self, job: Job) -> None: ...

    def moved(self, job: Job, label: str, done: int, total: int) -> None: ...

    def ending(self, job: Job) -> None: ...

    def ended(self, job: Job) -> None: ...

    def show(self, job: Job, trajectory: Trajectory) -> None: ...


@pytest.mark.parametrize("threads", [1, 3])
def test_a_job_has_the_threads_that_its_recipe_says(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many jobs as there are cores, each would take all of these otherwise."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho $3 $OMP_NUM_THREADS $MKL_NUM_THREADS $MINE\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "7")
    monkeypatch.setitem(os.environ, "MINE", "kept")
    job = Job("a", ("train",), tmp_path / "a.log", threads=threads)
    run_jobs([job], at_once=1, board=Silent(), on_end=lambda _: None)
    assert job.log.read_text() == f"train {threads} {threads} kept\n"


def test_what_became_of_candidates_is_told_by_why() -> None:
    out = Path("runs/d.jsonl")
    summary = Summary(40, 12, {"wrong to the grader": 7, "no room in rollout.max_tokens": 2}, left_over=3)
    assert _result_of_demos(out, summary) == [
        "demonstrations: runs/d.jsonl",
        "kept: 40, 12 of them with a failed call",
        "rejected: 7, wrong to the grader",
        "rejected: 2, no room in rollout.max_tokens",
        "left over: 3, more than are wanted, or than the wanted share has a place for",
    ]
    assert _result_of_demos(out, Summary(40, 12, {}))[1:] == ["kept: 40, 12 of them with a failed call"]
    assert _result_of_demos(out, None) == ["demonstrations: runs/d.jsonl (there already, and not of this command)"]
