"""Task sets of one's own among the sources, and what a source is asked with."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datafiles import questions, write
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.types import Trajectory
from retcon.tasks.data.check import check
from retcon.tasks.data.load import load
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.registry import held_out
from retcon.tasks.types import Task

ROLLED = Trajectory("t", "t", (), (), stop="answer")


class Easy:
    name: str = "game"
    system: str | None = None
    worth: float = 0.25

    def train(self, seed: int) -> Iterator[Task]:
        return (Task(f"{type(self).__name__}/{n}", "q", "a") for n in range(3))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [Task(f"{type(self).__name__}/held/{n % 5}", f"q{n % 5}", "a") for n in range(count)]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        return replace(trajectory, reward=self.worth)


class Hard(Easy):
    worth = 0.75


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = types.ModuleType("mixed_tasks_for_test")
    made.Easy, made.Hard = Easy, Hard
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def mixed(*paths: str, **settings: Any) -> Any:
    sources = [{"path": path, "weight": 1} for path in paths]
    return FileTaskSettings.model_validate({"sources": sources, "evaluation_share": 0, **settings}).open()


def test_two_sets_of_one_name_grade_their_own_tasks(module: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", questions(8))
    found = mixed(f"{module.__name__}:Easy", f"{module.__name__}:Hard", path)
    own = [*found.train(0), *found.evaluation(4, 0)]
    worth = {task.id.partition("/")[0]: found.grade(task, ROLLED).reward for task in own if task.question[0] == "q"}
    assert worth == {"Easy": 0.25, "Hard": 0.75}


def test_a_source_that_leaves_grading_to_others_is_graded_by_them(module: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "Write a sort.", "tests": ["assert sort([2, 1]) == [1, 2]"]}])
    module.made = lambda: FileTaskSettings(path=path, evaluation_share=0).open()
    found = FileTaskSettings(path=f"{module.__name__}:made").open()
    assert found.graders == {"code"}, "which are asked for before work starts"
    graded = found.graded_by(lambda task, made: replace(made, reward=0.5))
    (task,) = graded.train(0)
    made = graded.grade(task, ROLLED)
    assert isinstance(made, Trajectory)
    assert made.reward == 0.5


@pytest.mark.filterwarnings("error::retcon.core.errors.TaskWarning")
def test_a_source_that_says_how_it_is_graded_is_told_that_the_recipe_does(module: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", questions(3))
    graders = {"math": {"seconds": 3}}
    inner = FileTaskSettings(path=path, evaluation_share=0, rewards="graded", graders=graders)
    module.own, module.plain = inner.open, FileTaskSettings(path=path, evaluation_share=0).open
    told = rf"{module.__name__}:own: its own graders = .* and rewards = 'graded' do nothing: .* as the recipe says"
    with pytest.raises(TaskWarning, match=told):
        mixed(f"{module.__name__}:own", path)
    with pytest.raises(TaskWarning, match=r"its own rewards = 'graded' do nothing"):
        mixed(f"{module.__name__}:own", path, graders=graders)
    mixed(f"{module.__name__}:own", path, graders=graders, rewards="graded")
    mixed(f"{module.__name__}:plain", path, graders=graders, rewards="binary")


def test_problems_of_one_id_are_refused_and_no_more_are_wanted_than_there_are() -> None:
    recipe = load_recipe(None, ())
    assert len(held_out(recipe, Easy(), 5)) == 5
    told = r"test_data_mixed:Easy\.evaluation\(count, seed\) gave 2 tasks with the id 'Easy/held/0': an id names one"
    with pytest.raises(RecipeError, match=told):
        held_out(recipe, Easy(), 6)


def test_sources_that_give_one_id_are_named(module: Any, tmp_path: Path) -> None:
    """And not the class that puts them together, of which the user knows nothing."""
    module.Same = type("Same", (Easy,), {"evaluation": lambda self, count, seed: Easy.evaluation(self, 1, 0) * 2})
    module.Read = type("Read", (Easy,), {"evaluation": lambda self, count, seed: [Task("a/1", "What?", "x")][:count]})
    path = write(tmp_path / "a.jsonl", [{"id": "1", **row, "split": "test"} for row in questions(1)])
    easy, same, read = (f"{module.__name__}:{name}" for name in ("Easy", "Same", "Read"))
    module.Twin = type("Easy", (Easy,), {})
    for paths, said in (
        ((easy, f"{module.__name__}:Twin"), f"{easy} and {module.__name__}:Twin"),
        ((same, easy), same),
        ((path, read, easy), f"{path} and {read}"),
    ):
        found = mixed(*paths, **({"evaluation_split": "test"} if path in paths else {}))
        with pytest.raises(RecipeError, match=rf"^{said} gave 2 tasks with the id '[\w/]+': an id names one"):
            held_out(load_recipe(None, ()), found, 6)


def test_the_system_prompt_of_the_recipe_is_part_of_a_prompts_length(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [*questions(2), {"question": "one two three", "answer": "1", "system": "brief"}])

    def words(task: Task) -> int:
        return len(f"{task.system or ''} {task.question}".split())

    settings = FileTaskSettings(path=path, evaluation_share=0, max_prompt_tokens=7, system="You solve problems well.")
    source = load(settings, words).sources[0]
    assert [placed.task.question for placed in source.train] == ["one two three"]
    assert source.dropped == {"over max_prompt_tokens": 2}
    alone = load(settings.model_copy(update={"system": ""}), words).sources[0]
    assert [placed.task.system for placed in alone.train] == [None, None, "brief"]


def test_what_is_said_before_a_question_is_part_of_the_length_that_a_check_tells(tmp_path: Path) -> None:
    said = [("user", "2 + 2?"), ("assistant", "4"), ("user", "3 + 3?")]
    rows = [{"prompt": [{"role": role, "content": text} for role, text in said], "answer": "6"}]
    path = write(tmp_path / "a.jsonl", rows)
    assert check(FileTaskSettings(path=path, grader="exact", evaluation_share=0)).lengths.longest == 13
