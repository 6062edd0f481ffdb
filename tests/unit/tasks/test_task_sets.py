"""A class of one's own that gives what is no task set, no task, or no grade: told by name, before work starts."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comparing import answer, trajectory
from datafiles import questions, write
from retcon.build import build_tasks, open_graded
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError, TaskWarning
from retcon.core.types import Segment, Trajectory, Turn
from retcon.rollout.lengths import check_lengths, count_prompt_ids, drop_long_prompts
from retcon.tasks import registry as checked
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.data.tasks import DataTasks, Part
from retcon.tasks.graders.text import find_boxed
from retcon.tasks.kinds.numbers import (
    OPERATIONS,
    PROGRAMS,
    X_MAX,
    X_MIN,
    Numbers,
    Operation,
    Rates,
    Seen,
    draw_problem,
    problems,
    reply,
    write_code,
)
from retcon.tasks.registry import evaluation_tasks, problems_of, task_set, training_prompts, try_grade
from retcon.tasks.types import Task, epochs

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from parts.corpus import documents  # benchmarks/parts/corpus.py

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


def judged(given: Any) -> tuple[Trajectory, list[str]]:
    told: list[str] = []

    async def main() -> Trajectory:
        async with open_graded(Own(given)) as tasks:
            made = trajectory("t/0", answer("7"), reward=None)
            return await try_grade(Task("t", "go", "7"), made, tasks.grade, lambda _, why: told.append(why))

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
    assert why[0].startswith(f"test_task_sets:Own.grade {told}")


def test_a_grader_that_cannot_be_had_is_no_fault_of_a_rollout() -> None:
    with pytest.raises(RecipeError, match="no such grader"):
        judged(RecipeError("no such grader"))


def test_an_evaluation_of_nothing_is_refused_and_one_of_less_than_was_asked_for_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", questions(4))
    given = ["task.kind=file", f"task.path={path}", "evaluate.problems=9"]
    recipe = load_recipe(None, [*given, "task.evaluation_share=0"])
    with pytest.raises(RecipeError, match=r"no problem to evaluate on: task\.evaluation_share, task\.evaluation_pa"):
        problems_of(recipe, build_tasks(recipe))
    with pytest.raises(RecipeError, match=r"no problem to evaluate on: test_task_sets:Own.evaluation\(count, seed\)"):
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


@pytest.mark.parametrize("given", [None, [{"question": "go"}], [Task("t/0", "go", 7)]])  # type: ignore[arg-type]
def test_what_are_no_tasks_is_reported_by_its_own_name_among_files(given: Any) -> None:
    named = DataTasks("own", None, (Part("own", Own(given)),), (), {})
    with pytest.raises(RecipeError, match=r"^test_task_sets:Own\.train\(seed\)"):
        next(training_prompts(named, 0))
    with pytest.raises(RecipeError, match=r"^test_task_sets:Own\.evaluation\(count, seed\)"):
        evaluation_tasks(named, 1, 0)


# Task sets that end, and prompts that are too long.


CHAT = Chat(ByteTokenizer())


def tasks(*names: object) -> Iterator[Task]:
    return (Task(str(n), "", "") for n in names)


def drawn(orders: list[list[int]], apart: int, number: int) -> list[int]:
    stream = epochs(lambda epoch: tasks(*orders[epoch % len(orders)]), apart=apart)
    return [int(task.id) for task in islice(stream, number)]


def test_a_set_that_ends_is_gone_through_again_in_the_next_epochs_order():
    assert drawn([[0, 1, 2, 3], [3, 2, 1, 0]], 1, 8) == [0, 1, 2, 3, 3, 2, 1, 0]


def test_no_step_draws_a_task_twice():
    assert drawn([[0, 1, 2, 3], [3, 2, 1, 0]], 3, 8) == [0, 1, 2, 3, 1, 2, 3, 0]


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.lists(st.permutations(range(n)), min_size=1, max_size=4),
                                                     st.integers(1, n))))  # fmt: skip
def test_all_tasks_come_equally_often_and_none_too_soon(case):
    orders, apart = case
    found = drawn(orders, apart, 40)
    for n in range(len(found) - apart + 1):
        assert len(set(found[n : n + apart])) == apart
    often = [found.count(task) for task in orders[0]]
    assert max(often) - min(often) <= 2


def worded(*lengths: int) -> list[Task]:
    return [Task(f"t{n}", "x" * length, "") for n, length in enumerate(lengths)]


def test_prompts_that_leave_no_room_are_left_out_or_refused():
    room = count_prompt_ids(CHAT, worded(5)[0]) + 1  # for one id after a question of 5 letters
    assert [t.id for t in drop_long_prompts(worded(5, 6, 4), CHAT, room)] == ["t0", "t2"]
    with pytest.raises(RecipeError, match=rf"max_tokens = {room}.* 2 of 3 problems .*t2, has {room + 4} tokens"):
        check_lengths(worded(5, 6, 10), CHAT, room, "problems")
    check_lengths(worded(5, 4), CHAT, room, "problems")


# The base model's corpus: seeded, and without what the base model must not know.


def test_documents_repeat_with_their_seed_alone() -> None:
    assert list(islice(documents(3), 50)) == list(islice(documents(3), 50))
    assert list(islice(documents(3), 50)) != list(islice(documents(4), 50))


# The number problems, their grader and the teacher's programs.


EVALUATED = [10, 14, 21, 22, 27, 48, 53, 54, 58, 66, 72]
"""Of the problems that the seeds 0 to 99 draw: those that no run trains on, of any version."""


def test_a_problem_is_of_one_split_by_its_question_alone() -> None:
    """Neither seed, stream nor process matters: what any run trains on, no other run is evaluated on."""
    drawn = [draw_problem(random.Random(n)) for n in range(100)]
    assert [n for n, problem in enumerate(drawn) if problem.split == "evaluation"] == EVALUATED
    for split in ("train", "evaluation"):
        for seed in range(5):
            assert {problem.split for problem in islice(problems(seed, split), 20)} == {split}


def test_a_stream_repeats_with_its_seed_and_keeps_x_in_range() -> None:
    first = list(islice(problems(7, "train"), 300))
    assert first == list(islice(problems(7, "train"), 300))
    assert all(X_MIN <= p.steps[0].value <= X_MAX for p in first)
    assert {p.steps[0].operation.name for p in first} == {o.name for o in OPERATIONS}
    assert {p.steps[1].operation.name for p in first} == {o.name for o in OPERATIONS}


def _printed(source: str) -> str | None:
    """What a program prints, None where it raises or does not compile."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(source, {})
    except (ArithmeticError, AttributeError, NameError, SyntaxError, TypeError, ValueError):
        return None
    return out.getvalue().strip()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_the_teachers_programs_are_what_they_are_said_to_be(operation: Operation) -> None:
    programs = PROGRAMS[operation.name]
    rng = random.Random(operation.name)
    drawn = [operation.draw(rng) if n % 2 else operation.draw_with(rng, rng.randint(2, 999)) for n in range(12)]
    for source in programs.right:
        assert all(_printed(source.format(*a)) == str(operation.value(*a)) for a in drawn)
    for source in programs.failing:
        assert all(_printed(source.format(*a)) is None for a in drawn)
    for source in programs.wrong:
        printed = [_printed(source.format(*a)) for a in drawn]
        assert None not in printed
        assert any(p != str(operation.value(*a)) for p, a in zip(printed, drawn, strict=True))


def test_the_teacher_fails_often_at_first_and_seldom_after_an_error() -> None:
    problem = next(problems(0, "train"))
    rng = random.Random(0)
    step = problem.steps[0]
    right = {source.format(*step.args) for source in PROGRAMS[step.operation.name].right}
    first = sum(write_code(step, rng, after_error=False) in right for _ in range(500)) / 500
    later = sum(write_code(step, rng, after_error=True) in right for _ in range(500)) / 500
    assert first < 0.05
    assert 0.3 < later < 0.45


def test_a_teacher_fails_as_often_as_its_rates_say() -> None:
    step = next(problems(0, "train")).steps[0]
    programs = PROGRAMS[step.operation.name]

    def tries(rates: Rates, *, after_error: bool) -> set[str]:
        rng = random.Random(0)
        return {write_code(step, rng, after_error=after_error, rates=rates) for _ in range(100)}

    right, failing, wrong = (
        {source.format(*step.args) for source in kind} for kind in (programs.right, programs.failing, programs.wrong)
    )
    assert tries(Rates(0.0, 1.0, 0.0), after_error=False) == right
    assert tries(Rates(0.0, 1.0, 0.0), after_error=True) == failing
    assert tries(Rates(1.0, 0.0, 1.0), after_error=True) == wrong


def test_the_teacher_goes_from_step_to_step_to_the_answer() -> None:
    problem = next(problems(0, "train"))
    rng = random.Random(0)
    words, code = reply(problem, [], rng)
    assert words == "find x."
    assert code is not None
    words, _ = reply(problem, [Seen(False, "NameError: ...")], rng)
    assert words == "again: find x."
    words, code = reply(problem, [Seen(True, "137")], rng)
    assert words == "now x is 137."
    assert code is not None
    assert "137" in code
    assert reply(problem, [Seen(True, "137"), Seen(True, "5")], rng) == (r"answer: \boxed{5}", None)


def test_the_teacher_of_a_longer_chain_carries_on_what_it_saw_and_not_what_is_right() -> None:
    problem = next(problems(0, "train", 3))
    rng = random.Random(0)
    assert reply(problem, [], rng)[0] == "find x."
    words, code = reply(problem, [Seen(True, "137")], rng)
    assert words == "now x is 137."
    assert "137" in str(code)
    words, code = reply(problem, [Seen(True, "137"), Seen(False, "NameError"), Seen(True, "61")], rng)
    assert words == "now y is 61."
    assert "61" in str(code)
    assert "137" not in str(code)
    done = [Seen(True, "137"), Seen(True, "61"), Seen(True, "7")]
    assert reply(problem, done, rng) == (r"answer: \boxed{7}", None)


def test_a_recipe_says_how_long_and_how_hard_the_problems_are() -> None:
    tasks = Numbers(steps=3, first_failure=0.0, wrong_method=0.0).build()
    assert [len(task.meta["operations"]) for task in tasks.evaluation(3, seed=1)] == [3, 3, 3]
    task, lesson = next(tasks.lessons(0))
    assert len(task.meta["operations"]) == 3
    first = {lesson([], random.Random(n))[1] for n in range(40)}
    name, source = task.meta["operations"][0], PROGRAMS[task.meta["operations"][0]].right
    args = next(problems(0, "train", 3)).steps[0].args
    assert first == {program.format(*args) for program in source}, name


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{12}.", "12"),
        (r"\boxed{1} then \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{3} and \boxed{4", "3"),
        ("no box", None),
        (r"\boxed{5", None),
    ],
)
def test_boxed(text: str, answer: str | None) -> None:
    assert find_boxed(text) == answer


def _answered(text: str, stop: str = "answer") -> Trajectory:
    return Trajectory("t", "n", (), (Turn((Segment("sampled", text),)),), stop=stop)  # type: ignore[arg-type]


def test_grading_is_by_exact_match_of_a_given_answer() -> None:
    tasks = task_set("numbers")
    task = next(tasks.train(0))
    assert tasks.grade(task, _answered(rf"\boxed{{{task.answer}}}")).reward == 1.0
    wrong = tasks.grade(task, _answered(r"\boxed{-1}"))
    assert (wrong.reward, wrong.answer) == (-1.0, "-1")
    silent = tasks.grade(task, _answered(task.answer))
    assert (silent.reward, silent.answer) == (-1.0, None)
    # A rollout that ran out of turns gave no answer, whatever its last turn says.
    assert tasks.grade(task, _answered(rf"\boxed{{{task.answer}}}", "turns")).reward == -1.0
    assert tasks.grade(task, _answered("", "infrastructure")).reward is None


def test_an_unknown_task_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match="did you mean 'numbers'"):
        task_set("number")
