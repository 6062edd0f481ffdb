"""Training on tasks of one's own, as a library: what the run records, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest

from retcon.core.errors import CheckpointError, RecipeError, TaskWarning
from retcon.core.types import Trajectory
from retcon.store import jsonl
from retcon.tasks.types import Task
from retcon.train.rl import run_rl
from training import Ones, make_base, small_recipe

pytestmark = pytest.mark.torch
SMALL = {"prompts": 2, "group": 2, "steps": 3}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("own") / "base")


@dataclass(frozen=True)
class Few(Ones):
    """A set with an end."""

    name: str = "few"
    questions: tuple[str, ...] = ("go", "come", "stay")

    def train(self, seed: int) -> Iterator[Task]:
        return (Task(f"few/{n}", question, "1") for n, question in enumerate(self.questions))

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=1.0 if trajectory.id.endswith("0") else -1.0)


def run(base: Path, out: Path, tasks: Ones, max_tokens: int = 16, **rl: int) -> list[str]:
    """The tasks that each step drew, in order."""
    recipe = small_recipe(base, rl={**SMALL, **rl}, rollout={"max_tokens": max_tokens}, repair={"kind": "none"})
    run_rl(recipe, base, out, tasks=tasks)
    kept = [jsonl.read(out / f"trajectories/step-00000{n}.jsonl") for n in (1, recipe.rl.steps)]
    return [t.task for step in kept for t in step if t.provenance.index == 0]


def test_a_set_that_ends_begins_anew(base, tmp_path):
    assert run(base, tmp_path / "run", Few(), steps=2) == ["few/0", "few/1", "few/2", "few/0"]


def test_a_set_with_fewer_tasks_than_a_step_is_refused_before_there_is_a_run(base, tmp_path):
    with pytest.raises(RecipeError, match="ends after 1 different tasks, and a step can draw 2"):
        run(base, tmp_path / "run", Few(questions=("go",)))
    assert not (tmp_path / "run").exists()


def test_the_run_says_which_tasks_it_is_of_and_goes_on_with_no_others(base, tmp_path):
    run(base, tmp_path / "run", Few(), max_tokens=40)
    about = json.loads((tmp_path / "run/run.json").read_text())
    assert about["recipe"]["task"]["name"] == "few"
    assert about["inputs"]["tasks"].startswith("few ")
    run(base, tmp_path / "run", Few(), max_tokens=40)
    for other in (Few(questions=("go", "come", "leave")), Few(system="be brief")):
        with pytest.raises(CheckpointError, match=r"started from other tasks \(few \w{16}, now few \w{16}\)"):
            run(base, tmp_path / "run", other, max_tokens=40)
    with pytest.raises(CheckpointError, match=r"task\.name was 'few', is 'ones'"):
        run(base, tmp_path / "run", Ones(), max_tokens=40)


def test_prompts_that_are_too_long_are_counted_and_left_out(base, tmp_path):
    tasks = Few(questions=("go", "a long story " * 9, "come", "stay"))
    with pytest.warns(TaskWarning, match=r"max_tokens = 16.* 1 of the first 4 tasks .*left out"):
        assert run(base, tmp_path / "run", tasks) == ["few/0", "few/2", "few/2", "few/3"]
    all_turns = [len(t.turns) for t in jsonl.read(tmp_path / "run/trajectories/step-000001.jsonl")]
    assert min(all_turns) > 0


def test_where_all_are_too_long_nothing_begins(base, tmp_path):
    with pytest.raises(RecipeError, match=r"rollout\.max_tokens = 5: no room for an answer in 3 prompts in a row"):
        run(base, tmp_path / "run", Few(), max_tokens=5)
    assert not (tmp_path / "run").exists()


def test_the_streams_of_epochs_have_seeds_of_their_own(base, tmp_path):
    @dataclass(frozen=True)
    class Seeded(Ones):
        def train(self, seed: int) -> Iterator[Task]:
            return islice(super().train(seed), 4)

    first, last = run(base, tmp_path / "run", Seeded())[:2], run(base, tmp_path / "run", Seeded())[2:]
    assert {t.split("/")[1] for t in first} != {t.split("/")[1] for t in last}
