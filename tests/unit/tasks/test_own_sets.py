"""A class of one's own that gives what is no task set, no task, or no grade: told by name, before work starts."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comparing import answer, trajectory
from datafiles import questions, write
from retcon.build import build_tasks, open_graded
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.types import Trajectory
from retcon.tasks import registry as checked
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import DataTasks, Part
from retcon.tasks.registry import TaskSet, evaluation_tasks, graded, problems_of, training_prompts
from retcon.tasks.types import Task

MODULE = """
from retcon.config.schema import TaskSection

class Nothing(TaskSection):
    def build(self, count_tokens=None): return None

class Unwritten(TaskSection):
    pass
"""


class Own:
    """Gives whatever it is made with."""

    name, system = "own", None

    def __init__(self, given: Any) -> None:
        self.given = given

    def train(self, seed: int) -> Any:
        return self.given

    def evaluation(self, count: int, seed: int) -> Any:
        return self.given

    def grade(self, task: Task, made: Trajectory) -> Any:
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given(made) if callable(self.given) else replace(made, reward=self.given)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("Nothing", r"task.kind = 'my_sets:Nothing': its build\(\) returned None, .* lacks name, system, train, eval"),
        ("Unwritten", r"task family 'my_sets:Unwritten' has no build\(count_tokens=None\)"),
    ],
)
def test_a_kind_that_builds_no_task_set(kind: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_sets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=told):
        build_tasks(load_recipe(None, [f"task.kind=my_sets:{kind}"]))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "returned None, where tasks"),
        ([("a", "b")], r"gave \('a', 'b'\), where a retcon.Task belongs"),
        ([Task("t/0", 7, "7")], "the question of task 't/0' is 7, where text belongs"),  # type: ignore[arg-type]
    ],
)
def test_what_are_no_tasks(given: Any, told: str) -> None:
    with pytest.raises(RecipeError, match=rf"test_own_sets:Own\.train\(seed\):? {told}"):
        next(training_prompts(Own(given), 0))
    with pytest.raises(RecipeError, match=rf"test_own_sets:Own\.evaluation\(count, seed\):? {told}"):
        evaluation_tasks(Own(given), 1, 0)


def judged(given: Any) -> tuple[Trajectory, list[str]]:
    told: list[str] = []

    async def main() -> Trajectory:
        async with open_graded(Own(given)) as tasks:
            made = trajectory("t/0", answer("7"), reward=None)
            return await graded(Task("t", "go", "7"), made, tasks.grade, lambda _, why: told.append(why))

    return asyncio.run(main()), told


@pytest.mark.parametrize("given", [1.0, 1, True, np.float32(1), np.bool_(True), np.array(1.0)])
def test_whatever_is_a_number_is_a_reward(given: Any) -> None:
    made, told = judged(given)
    assert (made.reward, type(made.reward), told) == (1.0, float, [])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "gave a reward of None, where a number belongs"),
        ("good", "gave a reward of 'good', where a number belongs"),
        (float("nan"), "gave a reward of nan, where a finite number belongs"),
        (float("inf"), "gave a reward of inf"),
        (lambda _: None, "returned None, where the trajectory with its reward belongs"),
        (lambda _: 1.0, "returned 1.0, where the trajectory"),
        (RuntimeError("broke"), "raised RuntimeError: broke"),
        (SystemExit(0), "raised SystemExit: 0"),
    ],
)
def test_what_is_no_grade_costs_its_rollout_and_says_why(given: Any, told: str) -> None:
    made, why = judged(given)
    assert (made.reward, made.stop) == (None, "infrastructure")
    assert why[0].startswith(f"test_own_sets:Own.grade {told}")


def test_a_grader_that_cannot_be_had_is_no_fault_of_a_rollout() -> None:
    with pytest.raises(RecipeError, match="no such grader"):
        judged(RecipeError("no such grader"))


def test_an_evaluation_of_nothing_is_refused_and_one_of_less_than_was_asked_for_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", questions(4))
    given = ["task.kind=file", f"task.path={path}", "evaluate.problems=9"]
    recipe = load_recipe(None, [*given, "task.evaluation_share=0"])
    with pytest.raises(RecipeError, match=r"no problem to evaluate on: task\.evaluation_share, task\.evaluation_pa"):
        problems_of(recipe, build_tasks(recipe))
    with pytest.raises(RecipeError, match=r"no problem to evaluate on: test_own_sets:Own.evaluation\(count, seed\)"):
        problems_of(load_recipe(None, ()), Own([]))
    recipe = load_recipe(None, [*given, "task.evaluation_share=1"])
    with pytest.warns(TaskWarning, match="evaluate.problems = 9: there are 4 problems to evaluate on"):
        assert len(problems_of(recipe, build_tasks(recipe))) == 4


@pytest.mark.parametrize("path", [["numbers"], ["numbers", "a.jsonl"]])
def test_all_problems_of_what_has_no_end_are_refused(
    path: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.jsonl", questions(4))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checked, "ENDLESS", 30)
    sources = [{"path": name, "weight": 1} for name in path]
    section = FileTaskSettings.model_validate({"sources": sources, "evaluation_share": 1, "name": "numbers"})
    told = r"numbers has 30 problems or more, and may have no end: say how many .*evaluate\.problems="
    with pytest.raises(RecipeError, match=told):
        problems_of(load_recipe(None, [f"evaluate.problems={checked.EVERY}"]), section.open())
    assert len(problems_of(load_recipe(None, ["evaluate.problems=8"]), section.open())) == 8


def test_all_problems_of_what_ends_are_evaluated_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = load_recipe(None, [f"evaluate.problems={checked.EVERY}"])
    assert len(problems_of(every, Own([Task("a", "q", "1")]))) == 1
    monkeypatch.setattr(checked, "ENDLESS", 3)
    path = write(tmp_path / "a.jsonl", questions(4))
    assert len(problems_of(every, FileTaskSettings(path=path, evaluation_share=1).open())) == 4


class Broken(Own):
    """Raises wherever it is asked."""

    def train(self, seed: int) -> Any:
        yield Task("t/0", "go", "7")
        raise KeyError("row 2")

    def evaluation(self, count: int, seed: int) -> Any:
        raise OSError("no disk")


@pytest.mark.parametrize("inside", [False, True])
def test_one_that_raises_is_told_by_its_own_name_and_line_also_among_files(inside: bool) -> None:
    own = Broken(KeyError("x"))
    named: TaskSet = own
    if inside:  # as `task.path = "my_module:MyTasks"` makes of it
        named = DataTasks("own", None, (Part("own", own),), (), {})
    with pytest.raises(RecipeError, match=r"^test_own_sets:Broken\.train\(seed\) raised KeyError: 'row 2' \(.*:\d+\)$"):
        list(training_prompts(named, 0))
    with pytest.raises(RecipeError, match=r"^test_own_sets:Broken\.evaluation\(count, seed\) raised OSError: no disk "):
        evaluation_tasks(named, 1, 0)
    task = Task("t", "go", "7", meta={"family": "own"})
    told: list[str] = []

    async def main() -> None:
        async with open_graded(named) as tasks:
            made = trajectory("t/0", answer("7"), reward=None)
            await graded(task, made, tasks.grade, lambda _, why: told.append(why))

    asyncio.run(main())
    assert re.fullmatch(r"test_own_sets:Broken\.grade raised KeyError: 'x' \(.*test_own_sets\.py:\d+\)", told[0])


@pytest.mark.parametrize("given", [None, [{"question": "go"}], [Task("t/0", "go", 7)]])  # type: ignore[arg-type]
def test_what_are_no_tasks_is_told_by_its_own_name_among_files(given: Any) -> None:
    named = DataTasks("own", None, (Part("own", Own(given)),), (), {})
    with pytest.raises(RecipeError, match=r"^test_own_sets:Own\.train\(seed\)"):
        next(training_prompts(named, 0))
    with pytest.raises(RecipeError, match=r"^test_own_sets:Own\.evaluation\(count, seed\)"):
        evaluation_tasks(named, 1, 0)
