"""What an evaluation keeps while it is under way: one process at a time adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from retcon.core.errors import CheckpointError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.evaluate.begun import BegunFile
from retcon.evaluate.result import Result

OF = Result("model", {}, {})


def rollout(number: int) -> Trajectory:
    return Trajectory(f"t{number}", "a", (), (Turn((Segment("sampled", "1"),)),), reward=1.0)


def test_a_second_evaluation_into_the_same_file_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "trajectories-t1.jsonl"
    with BegunFile(file, OF) as first:
        first.add("a", [rollout(0)])
        with pytest.raises(CheckpointError, match=r"another command is at work on .*t1\.jsonl\.partial: wait for it"):
            BegunFile(file, OF)
        first.add("b", [rollout(1)])
    with BegunFile(file, OF) as again:
        assert list(again.groups) == ["a", "b"]
        again.remove()
    assert not list(tmp_path.iterdir())
