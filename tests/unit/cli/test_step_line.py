"""The line that a command shows of each step."""

from __future__ import annotations

from retcon.runs.progress import StepLine


def test_a_line_names_the_stage() -> None:
    line = StepLine(80, ["short", "long"])
    assert line({"step": 31, "stage": 2, "reward": 0.5}) == "step 31/80  stage 2/2 long  reward +0.500"
    assert StepLine(80)({"step": 3, "reward": 0.5}) == "step  3/80  reward +0.500"


def test_the_time_left_counts_what_the_run_did_not_cost() -> None:
    """Steps that cost 1 s each, with an evaluation of 9 s after each."""
    now = 100.0
    line, told = StepLine(1000, clock=lambda: now), []
    for step in range(1, 4):
        told.append(line({"step": step, "wall_s": float(step)}).partition("left ")[2])
        now += 10
    assert told == ["", "2:46:20", "2:46:10"]


def test_the_time_left_is_that_of_the_last_steps() -> None:
    times = iter([0.0, *(1000.0 + n for n in range(30))])
    line = StepLine(100, clock=lambda: next(times))
    told = [line({"step": step}) for step in range(1, 32)]
    assert told[1].endswith("left 27:13:20")
    assert told[30].endswith("left 1:09")
