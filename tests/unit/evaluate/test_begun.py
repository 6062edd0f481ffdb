"""What an evaluation keeps while it is under way: one process at a time adds to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retcon.core.errors import CheckpointError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.evaluate.begun import BegunFile
from retcon.evaluate.result import Result
from retcon.runs.cost import Cost, Meter

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


def test_a_problem_that_lost_a_rollout_gets_another_chance(tmp_path: Path) -> None:
    """What was kept of it would stay lost in every session to come."""
    file = tmp_path / "trajectories-t1.jsonl"
    lost = replace(rollout(1), reward=None, stop="infrastructure")
    with BegunFile(file, OF) as first:
        first.add("a", [rollout(0), lost])
        first.add("b", [rollout(2), rollout(3)])
        assert list(first.groups) == ["b"]
    with BegunFile(file, OF) as again:
        assert list(again.groups) == ["b"]


def test_what_earlier_sessions_cost_is_counted_on(tmp_path: Path) -> None:
    file = tmp_path / "trajectories-t1.jsonl"
    with BegunFile(file, OF) as first:
        first.meter = Meter(Cost(cpu_s=1000.0, wall_s=5000.0))
        first.add("a", [rollout(0)])
    with BegunFile(file, OF) as again:
        cost = again.meter.read()
    assert 1000 <= cost.cpu_s < 2000
    assert 5000 <= cost.wall_s < 6000


def test_one_that_is_no_unicode_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "trajectories-t1.jsonl"
    with BegunFile(file, OF) as first:
        first.add("a", [rollout(0)])
    partial = tmp_path / "trajectories-t1.jsonl.partial"
    made = partial.read_bytes().replace(b'"task":"a"', b'"task":"\xff"')
    partial.write_bytes(made)
    with pytest.raises(CheckpointError, match=r"t1\.jsonl\.partial is broken \('utf-8' .*: remove it"):
        BegunFile(file, OF)
    assert partial.read_bytes() == made
