"""The line that a command shows of each step."""

from __future__ import annotations

from retcon.cli.common.progress import StepLine


def test_a_line_names_the_stage() -> None:
    line = StepLine(80, ["short", "long"])
    assert line({"step": 31, "stage": 2, "reward": 0.5}) == "step 31/80  stage 2/2 long  reward +0.500"
    assert StepLine(80)({"step": 3, "reward": 0.5}) == "step  3/80  reward +0.500"
