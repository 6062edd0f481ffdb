"""Training on tasks of one's own, as a library: what the run records, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from retcon.core.errors import RecipeError, SandboxUnavailable
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


@pytest.mark.parametrize("same", ["id", "content"])
def test_problems_of_the_evaluation_are_refused_as_training_tasks(same, base, tmp_path):
    class Leaking(Few):
        def evaluation(self, count: int, seed: int) -> list[Task]:
            return [Task("few/1", "other", "1") if same == "id" else Task("held/0", "come", "1")]

    with pytest.raises(
        RecipeError, match=r"Leaking: 1 training task .*\(few/1 is the first\): the two must not overlap"
    ):
        run(base, tmp_path / "run", Leaking(), steps=2)
    assert not (tmp_path / "run").exists()


class Misgrading(Few):
    """Every rollout has answered; few of them cannot be graded in the first step, most of them later."""

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        step, index = map(int, trajectory.id.split("/")[-2:])
        turns = tuple(replace(turn, stop="answer", calls=()) for turn in trajectory.turns)
        if index % 3 and (step > 1 or index == 1):
            return replace(trajectory, turns=turns, stop="infrastructure")
        return replace(trajectory, turns=turns, reward=float(index % 2))


def test_a_run_ends_where_most_answers_cannot_be_graded_and_keeps_its_weights(base, tmp_path):
    with pytest.raises(SandboxUnavailable, match="step 2: 10 of the 16 rollouts that gave an answer could not be grad"):
        run(base, tmp_path / "run", Misgrading(), group=8)
    assert (tmp_path / "run/checkpoints/step-000001").is_dir()
    assert not (tmp_path / "run/final").exists()
