"""What an evaluation keeps while it is under way: one process at a time adds to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.core.errors import CheckpointError
from retcon.core.types import Parent, Segment, Trajectory, Turn
from retcon.evaluate.result import PartialFile, Result, score, write_result
from retcon.evaluate.runner import _check_not_begun, result_in
from retcon.store import jsonl
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.types import Task

OF = Result("model", {}, {})


def asking(system: str) -> DataTasks:
    return DataTasks("own", system, (), (), {})


def rollout(number: int) -> Trajectory:
    return Trajectory(f"t{number}", "a", (), (Turn((Segment("sampled", "1"),)),), reward=1.0)


def test_a_second_evaluation_into_the_same_file_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "trajectories-t1.jsonl"
    with PartialFile(file, OF) as first:
        first.add("a", [rollout(0)])
        with pytest.raises(CheckpointError, match=r"another command is at work on .*t1\.jsonl\.partial: wait for it"):
            PartialFile(file, OF)
        first.add("b", [rollout(1)])
    with PartialFile(file, OF) as again:
        assert list(again.groups) == ["a", "b"]
        again.remove()
    assert not list(tmp_path.iterdir())


def test_a_problem_that_lost_a_rollout_gets_another_chance(tmp_path: Path) -> None:
    """What was kept of it would stay lost in every session to come."""
    file = tmp_path / "trajectories-t1.jsonl"
    lost = replace(rollout(1), reward=None, stop="infrastructure")
    with PartialFile(file, OF) as first:
        first.add("a", [rollout(0), lost])
        first.add("b", [rollout(2), rollout(3)])
        assert list(first.groups) == ["b"]
    with PartialFile(file, OF) as again:
        assert list(again.groups) == ["b"]


def test_children_are_kept_and_written_with_their_rollout_and_their_tokens_count(tmp_path: Path) -> None:
    written = (Turn((Segment("sampled", "1", (5, 6)),)),)
    child = replace(rollout(1), id="t0/0.0.0/1", turns=written, reward=None, parent=Parent("t0", 0, "0.0.0"))
    made = replace(rollout(0), turns=written, children=(child,))
    file = tmp_path / "trajectories-t1.jsonl"
    with PartialFile(file, OF) as first:
        first.add("a", [made, rollout(2)])
    with PartialFile(file, OF) as again:
        assert again.groups == {"a": [made, rollout(2)]}
    jsonl.write(file, again.groups["a"])
    assert list(jsonl.read(file)) == [made, rollout(2)]
    (problem,) = score([("a", [made])], temperature=1.0, top_p=1.0, cpu_s=0.0, wall_s=0.0).problems
    assert (problem.samples, problem.tokens) == (1, 4.0)


def test_one_that_is_no_unicode_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "trajectories-t1.jsonl"
    with PartialFile(file, OF) as first:
        first.add("a", [rollout(0)])
    partial = tmp_path / "trajectories-t1.jsonl.partial"
    made = partial.read_bytes().replace(b'"task":"a"', b'"task":"\xff"')
    partial.write_bytes(made)
    with pytest.raises(CheckpointError, match=r"t1\.jsonl\.partial is broken \('utf-8' .*: remove it"):
        PartialFile(file, OF)
    assert partial.read_bytes() == made


def test_another_that_began_or_ended_meanwhile_is_not_gone_on_with(tmp_path: Path) -> None:
    """Both looked while nothing was there yet."""
    recipe, task = load_recipe(None), Task("a", "1 + 1?", "2")
    first = result_in(recipe, tmp_path / "one", tmp_path, [task])
    second = result_in(recipe, tmp_path / "two", tmp_path, [task])
    file = tmp_path / "trajectories-t1.jsonl"
    with PartialFile(file, first) as begun:
        _check_not_begun(first, recipe, tmp_path, "t1")
        begun.add("a", [rollout(0)])
    with PartialFile(file, second), pytest.raises(CheckpointError, match=r"evaluates .*one, not .*two: choose another"):
        _check_not_begun(second, recipe, tmp_path, "t1")
    with PartialFile(file, first) as again:
        _check_not_begun(first, recipe, tmp_path, "t1")
        assert list(again.groups) == ["a"]
        again.remove()
    write_result(tmp_path / "result.json", first)
    with PartialFile(file, second), pytest.raises(CheckpointError, match=r"evaluates .*one, not .*two: choose another"):
        _check_not_begun(second, recipe, tmp_path, "t1")


@pytest.mark.parametrize("kind", ["openai", "vllm"])
def test_it_goes_on_with_a_server_that_is_asked_otherwise(kind: str, tmp_path: Path) -> None:
    server = [f"engine.kind={kind}", "engine.url=http://127.0.0.1:9/v1", "engine.model=x"]
    task = Task("a", "1 + 1?", "2")
    began = result_in(load_recipe(None, server), tmp_path, tmp_path, [task])
    with PartialFile(tmp_path / "trajectories-t1.jsonl", began) as begun:
        begun.add("a", [rollout(0)])
    slower = ["engine.at_once=2", "engine.patience=900", "engine.seconds=500", "engine.key_env=OTHER_KEY"]
    assert result_in(load_recipe(None, [*server, *slower]), tmp_path, tmp_path, [task]).checkpoint == began.checkpoint
    with pytest.raises(CheckpointError, match=r"engine\.seeds = True, now False: choose another --out"):
        result_in(load_recipe(None, [*server, "engine.seeds=false"]), tmp_path, tmp_path, [task])


def test_another_system_prompt_of_a_custom_task_set_makes_another_evaluation(tmp_path: Path) -> None:
    """No recipe says what a class has: the old figures were shown again."""
    recipe, task, model = load_recipe(None), Task("a", "1 + 1?", "2"), tmp_path / "model"
    out = tmp_path / "out"
    out.mkdir()
    held = result_in(recipe, model, out, [task], asking("Be brief."))
    with PartialFile(out / "trajectories-t1.jsonl", held) as begun:
        begun.add("a", [rollout(0)])
    assert result_in(recipe, model, out, [task], asking("Be brief.")).checkpoint == str(model)
    with pytest.raises(CheckpointError, match=r"holds an evaluation of other system prompts \(\w+, now \w+\): choose"):
        result_in(recipe, model, out, [task], asking("Think first."))
