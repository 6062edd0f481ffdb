"""A task set made of files: what is left out, what is held out, what overlaps, in which order, and its identity."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datafiles import LONG, ROWS, questions, write
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.types import Segment, Trajectory, Turn
from retcon.tasks.data.check import check
from retcon.tasks.data.fields import DataError, canonicalize
from retcon.tasks.data.load import load
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.registry import draw_problems, task_set
from retcon.tasks.types import Task


def opened(path: str, **settings: Any) -> DataTasks:
    return FileTaskSettings(path=path, **settings).open()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is $x + 1$ ?", "what is  $x+1$?"), ("that $a_n=1$ for all $n$.", "that\n\\[a_n = 1\\]for all $n.$"),
        (r"Find $\dfrac12$.", r"Find $\frac12$"), (r"$\left( x, y \right)$", r"$(x,y)$"), ("ﬁnd ½", "find ½"),
        ("3½ + x²", "3 ½ + x^2"),
    ],
)  # fmt: skip
def test_layout_makes_no_other_question(one: str, other: str) -> None:
    assert canonicalize(one) == canonicalize(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"Compute $\cos (-150^\circ)$.", r"Compute $\cos 150^\circ$."), ("x^8 - 98", "x^8 + 98"),
        ("Find side $a$.", "Find side $A$."), (r"$\Delta x$", r"$\delta x$"), ("the numbers 1 2", "the numbers 12"),
        ("What is 5!", "What is 5"), ("What is 2² + 3?", "What is 22 + 3?"), ("What is 10⁻³?", "What is 10-3?"),
        ("What is a₁₀?", "What is a10?"), ("What is a₂?", "What is a²?"), ("What is 3½ − 1?", "What is 31⁄2 − 1?"),
    ],
)  # fmt: skip
def test_a_sign_a_name_or_a_digit_does(one: str, other: str) -> None:
    assert canonicalize(one) != canonicalize(other)


def test_what_is_left_out_is_counted_with_its_places_before_work_starts(tmp_path: Path) -> None:
    rows = [
        *questions(3), {"question": "What is 1  plus 1?", "answer": "3"}, {"question": "empty", "answer": " "},
        {"question": "", "answer": "1"}, {"question": "marked", "answer": "1", "eval_overlap": "math500"},
        {"question": "a very long one " * 9, "answer": "1"},
    ]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    settings = FileTaskSettings(path=path, evaluation_share=0, max_prompt_tokens=10)
    source = load(settings, lambda task: len(task.question.split())).sources[0]
    assert source.where_dropped == {
        "the same as one before": [f"{path}, line 4"], "without an answer": [f"{path}, line 5"],
        "without a question": [f"{path}, line 6"], "marked to be left out": [f"{path}, line 7"],
        "over max_prompt_tokens": [f"{path}, line 8"],
    }  # fmt: skip
    assert source.conflicting == [(f"{path}, line 4", f"{path}, line 2")]
    with pytest.warns(TaskWarning, match=r"a\.jsonl: 3 of 8 rows are used; left out: 1 the same as one before, 1"):
        settings.open(lambda task: len(task.question.split()))
    with pytest.raises(DataError, match=r"max_prompt_tokens = 10: .*no tokenizer here"):
        settings.open()


def test_a_file_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "x", "answer": ""}])
    with pytest.raises(DataError, match=r"a\.jsonl: no row can be used: 1 without an answer"):
        opened(path)


def test_the_split_by_hash_depends_on_the_question_alone(tmp_path: Path) -> None:
    rows = questions(400)
    held = {t.question for t in opened(write(tmp_path / "a.jsonl", rows), evaluation_share=0.25).evaluation(400, 0)}
    assert 60 < len(held) < 140
    assert "What is 10 plus 10?" in held  # on every machine
    assert "What is 7 plus 7?" not in held
    other = [{"problem": f"  {row['question']}", "answer": "?"} for row in rows[300:] + rows[:300] + rows[:9]]
    with pytest.warns(TaskWarning, match="9 the same as one before"):
        again = opened(write(tmp_path / "b.jsonl", other), evaluation_share=0.25)
    assert {t.question.strip() for t in again.evaluation(400, 0)} == held
    assert not held & {t.question.strip() for t in again.train(0)}


def test_splits_by_name(tmp_path: Path) -> None:
    rows = [{**row, "split": name} for row, name in zip(questions(6), ["train", "test", "dev"] * 2, strict=True)]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.warns(TaskWarning, match="2 of another split"):
        found = opened(path, split="train", evaluation_split="test")
    assert {t.answer for t in found.train(0)} == {"0", "6"}
    assert {t.answer for t in found.evaluation(9, 0)} == {"2", "8"}
    assert len(list(opened(path, evaluation_split="test").train(0))) == 4
    with pytest.raises(
        DataError, match=r"no row of split 'tset' \(did you mean 'test'\?\); there are: train, test, dev"
    ):
        opened(path, evaluation_split="tset")
    with pytest.raises(DataError, match=r"line 1: no column 'split'.*it has: question, answer\. .*leave task\.split"):
        opened(write(tmp_path / "b.jsonl", questions(1)), split="train")


def test_a_split_for_evaluation_is_of_the_file_for_evaluation(tmp_path: Path) -> None:
    train = write(tmp_path / "t.jsonl", [{**row, "split": "train"} for row in questions(4)])
    held = write(tmp_path / "e.jsonl", [{**row, "split": f"part{n}"} for n, row in enumerate(questions(7)[4:])])
    with pytest.warns(TaskWarning, match=r"e\.jsonl: 1 of 3 rows .* 2 of another split"):
        found = opened(train, split="train", evaluation_path=held, evaluation_split="part1")
    assert [len(list(found.train(0))), [t.answer for t in found.evaluation(9, 0)]] == [4, ["10"]]
    with pytest.raises(DataError, match="evaluation_path = numbers: it is a task set of its own"):
        opened(train, evaluation_path="numbers")


def test_evaluation_from_another_file_must_not_overlap(tmp_path: Path) -> None:
    evaluation = write(tmp_path / "e.jsonl", [{"question": f"Once {LONG}. How many?", "answer": "1"}, *questions(2)])
    rows = [*questions(4)[1:], {"question": f"On Monday {LONG}.", "answer": "5"}]
    train = write(tmp_path / "t.jsonl", rows)
    with pytest.raises(DataError, match=r"2 training tasks overlap") as caught:
        opened(train, evaluation_path=evaluation)
    assert f"{train}, line 1: the same as {evaluation}, line 3" in str(caught.value)
    assert f"{train}, line 4: 88% of {evaluation}, line 1 stands in it (runs of 13 words)" in str(caught.value)
    with pytest.warns(TaskWarning, match="2 overlapping with evaluation"):
        found = opened(train, evaluation_path=evaluation, overlap="drop")
    assert [len(list(found.train(0))), len(found.evaluation(9, 0))] == [2, 3]
    assert len(list(opened(train, evaluation_path=evaluation, overlap="allow").train(0))) == 4
    with pytest.raises(DataError, match="2 training tasks overlap"):
        opened(train, evaluation_share=0, against=[evaluation])


def test_what_is_like_a_question_held_out_by_hash_is_not_trained_on(tmp_path: Path) -> None:
    rows = [{"question": f"{LONG}, and there are {n} of them", "answer": str(n)} for n in range(8)]
    with pytest.warns(TaskWarning, match="too like what is held out"):
        found = opened(write(tmp_path / "a.jsonl", [*rows, *questions(9)]), evaluation_share=0.3)
    held = [t for t in found.evaluation(99, 0) if LONG in t.question]
    assert held
    assert not [t for t in found.train(0) if LONG in t.question]


def test_a_seed_gives_one_order_whatever_the_files(tmp_path: Path) -> None:
    rows = questions(50)
    found = opened(write(tmp_path / "a.jsonl", rows))
    random.Random(0).shuffle(rows)
    other = opened(write(tmp_path / "a.jsonl", rows))
    assert [t.id for t in found.train(3)] == [t.id for t in other.train(3)] != [t.id for t in found.train(4)]
    assert found.fingerprint == other.fingerprint
    (tmp_path / "b").mkdir()
    packed = opened(write(tmp_path / "b/a.jsonl.gz", rows))
    (tmp_path / "b/a.json").write_text(json.dumps(rows))
    for moved in (packed, opened(str(tmp_path / "b/a.json"))):
        assert (moved.name, moved.fingerprint) == (found.name, found.fingerprint) == ("a", found.fingerprint)


def test_shares_of_a_pass_follow_the_weights(tmp_path: Path) -> None:
    few = write(tmp_path / "few.jsonl", [{"question": f"few {n}", "answer": "1"} for n in range(5)])
    many = write(tmp_path / "many.jsonl", questions(95))
    found = FileTaskSettings(
        sources=({"path": few, "weight": 3}, {"path": many, "weight": 1}),
        evaluation_share=0,  # type: ignore[arg-type]
    ).open()
    drawn = list(found.train(0))
    assert Counter(t.id.partition("/")[0] for t in drawn) == {"few": 75, "many": 25}
    assert {Counter(t.id for t in drawn)[f"few/{n}"] for n in range(5)} <= {15, 0}
    assert drawn == list(found.train(0)) != list(found.train(1))
    plain = FileTaskSettings(sources=(few, many), evaluation_share=0).open()  # type: ignore[arg-type]
    assert len({t.id for t in plain.train(0)}) == len(list(plain.train(0))) == 100
    assert found.fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"path": "a", "sources": ["b"]}, "give path, or sources"),
        (
            {"sources": [{"path": "a", "weight": 1}, {"path": "b"}]},
            "weight: give one above 0 to every source, or to none",
        ),
        ({"path": "a", "weigth": 1}, "weigth"),
        ({"sources": 3}, "valid tuple"),
    ],
)
def test_settings_that_contradict_are_refused(settings: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FileTaskSettings(**settings)


def test_settings_that_name_no_data_are_refused_when_they_are_opened() -> None:
    with pytest.raises(DataError, match=r"task\.path: it is empty"):
        FileTaskSettings().open()


def test_a_custom_family_and_a_task_set_are_sources_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_tasks_for_test")
    module.Mine = Mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    numbers = opened("numbers")
    assert next(numbers.train(1)).question == next(task_set("numbers").train(1)).question
    assert len(numbers.evaluation(5, 0)) == 5
    mixed = FileTaskSettings(
        sources=(
            {"path": "own_tasks_for_test:Mine", "weight": 1},  # type: ignore[arg-type]
            {"path": write(tmp_path / "a.jsonl", questions(8)), "weight": 1},  # type: ignore[arg-type]
        ),
        evaluation_share=0,
    ).open()
    drawn = list(mixed.train(0))
    own = [t for t in drawn if t.id.startswith("mine/")]
    assert (len(drawn), len(own), own[0].system) == (8, 4, "as mine")
    assert mixed.grade(own[0], answered("anything")).reward == 0.25  # type: ignore[union-attr]
    with pytest.raises(DataError, match="may be endless: give every source a weight"):
        FileTaskSettings(sources=("numbers", str(tmp_path / "a.jsonl"))).open()  # type: ignore[arg-type]


class Mine:
    name = "mine"
    system = "as mine"

    def train(self, seed: int) -> Iterator[Task]:
        return (Task(f"mine/{n}", "q", "a") for n in range(3))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return []

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        return Trajectory("t", "t", (), (), stop="answer", reward=0.25)


def answered(text: str) -> Trajectory:
    return Trajectory("t", "t", (), (Turn((Segment("sampled", text),)),), stop="answer")


def graded(found: DataTasks, reply: str) -> float | None:
    async def one() -> Trajectory:
        result = found.grade(next(found.train(0)), answered(reply))
        return result if isinstance(result, Trajectory) else await result

    return asyncio.run(one()).reward


def test_texts_and_letters_are_graded_as_they_are_and_programs_by_who_can(tmp_path: Path) -> None:
    exact = opened(
        write(tmp_path / "a.jsonl", [{"question": "q", "answer": "New York"}]), grader="exact", evaluation_share=0
    )
    assert [graded(exact, r"\boxed{new york}"), graded(exact, r"\boxed{York}")] == [1.0, -1.0]
    assert [graded(exact, "New York<|im_end|>"), graded(exact, "York<|im_end|>")] == [1.0, -1.0]
    choice = opened(write(tmp_path / "b.jsonl", [ROWS["choices"]]), evaluation_share=0)
    assert [graded(choice, "The answer is B."), graded(choice, r"\boxed{A}")] == [1.0, -1.0]
    code = opened(write(tmp_path / "c.jsonl", [ROWS["mbpp"]]), evaluation_share=0)
    with pytest.raises(RecipeError, match="graded by 'code', which runs programs: open a grader"):
        graded(code, "x")
    assert (
        graded(code.graded_by(lambda task, trajectory: Trajectory("t", "t", (), (), stop="answer", reward=0.5)), "x")
        == 0.5
    )


def test_the_identity_says_what_was_read_and_changes_with_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", questions(20))
    found = opened(path, evaluation_share=0.2)
    about = json.loads(json.dumps(found.identity))
    source = about["sources"][0]
    assert about["name"] == found.name == "a"
    assert (source["rows"], source["convention"], source["graders"]) == (20, "plain", {"math": 20})
    assert source["train"] + source["evaluation"] == 20
    others = [
        opened(path, evaluation_share=0.5), opened(path, evaluation_share=0.2, grader="exact"),
        opened(path, evaluation_share=0.2, system="x"), opened(path, evaluation_share=0.2, name="b"),
        opened(write(tmp_path / "a.jsonl", [*questions(19), {"question": "What is 19 plus 19?", "answer": "39"}]),
               evaluation_share=0.2),
    ]  # fmt: skip
    assert len({found.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_the_page_on_data_says_what_every_setting_is() -> None:
    page = (Path(__file__).parents[4] / "docs" / "data" / "problems.md").read_text(encoding="utf-8").replace("\\|", "|")
    for name, about in FileTaskSettings.model_fields.items():
        if name != "kind":
            assert about.description
            assert f"| `{name}` | `" in page
            assert f"` | {about.description} |" in page


# Task sets of one's own among the sources, and what a source is asked with.


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


def test_problems_of_one_id_are_refused_and_no_more_are_wanted_than_there_are() -> None:
    recipe = load_recipe(None, ())
    assert len(draw_problems(recipe, Easy(), 5)) == 5
    told = r"test_data_tasks:Easy\.evaluation\(count, seed\) gave 2 tasks with the id 'Easy/held/0': an id names one"
    with pytest.raises(RecipeError, match=told):
        draw_problems(recipe, Easy(), 6)


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
            draw_problems(load_recipe(None, ()), found, 6)


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


# Which split of a data set a model is measured on, where nobody names one.


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Sequence[str]:
    """The splits of a data set of the hub: the n-th has the problem `n plus n` alone."""
    names: Sequence[str] = request.param
    package = types.ModuleType("datasets")

    def load_dataset(id: str, name: str | None = None, *, revision: str | None = None) -> dict[str, Any]:
        return {split: [questions(len(names))[n]] for n, split in enumerate(names)}

    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    return names


def measured(**settings: Any) -> list[str]:
    """The answers of the problems, of which none is for training, as of `retcon eval --data`."""
    tasks = FileTaskSettings(path="openai/gsm8k", evaluation_share=1, **settings).open()
    assert not list(tasks.train(0))
    return [task.answer for task in tasks.evaluation(9, 0)]


@pytest.mark.parametrize("hub", [("train",), ("test",)], indirect=True)
def test_a_single_split_is_taken_as_it_is(hub: Sequence[str]) -> None:
    assert measured() == ["0"]


@pytest.mark.parametrize("hub", [("train", "test")], indirect=True)
def test_one_that_is_named_counts_and_training_is_on_the_one_for_training(hub: Sequence[str]) -> None:
    assert measured(split="train") == ["0"]
    tasks = FileTaskSettings(path="openai/gsm8k", evaluation_share=0).open()
    assert [task.answer for task in tasks.train(0)] == ["0"]


@pytest.mark.parametrize("hub", [("train", "test")], indirect=True)
def test_the_manifest_says_which(hub: Sequence[str], tmp_path: Path) -> None:
    with pytest.warns(TaskWarning):
        tasks = FileTaskSettings(path="openai/gsm8k", evaluation_share=1).open()
    assert tasks.identity["sources"][0]["split"] == "test"
