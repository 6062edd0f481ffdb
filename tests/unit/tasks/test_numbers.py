"""The number problems, their grader and the teacher's programs."""

from __future__ import annotations

import contextlib
import io
import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retcon.core.errors import RecipeError
from retcon.core.types import Segment, Trajectory, Turn
from retcon.tasks.graders.text import boxed
from retcon.tasks.kinds.numbers import (
    LETTERS,
    MAX_STEPS,
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
from retcon.tasks.registry import task_set

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


def test_no_problem_of_a_stream_comes_twice() -> None:
    drawn = [p.question for p in islice(problems(7, "train", 1), 500)]  # of 400 draws of one step, three are repeats
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("steps", [2, 3, MAX_STEPS])
def test_each_step_uses_the_value_before_by_its_letter_alone(steps: int) -> None:
    for problem in islice(problems(3, "train", steps), 200):
        assert len(problem.steps) == len(problem.task().meta["operations"]) == steps
        assert problem.answer == problem.steps[-1].value
        for before, step, letter in zip(problem.steps, problem.steps[1:], LETTERS, strict=False):
            assert X_MIN <= before.value <= X_MAX
            assert step.args[step.x_at or 0] == before.value
            assert f"let {letter} be {before.phrase}." in problem.question
            assert letter in step.phrase.split()


def test_the_question_of_a_longer_chain() -> None:
    problem = next(problems(0, "train", 3))
    x, y, last = problem.steps
    assert problem.question == f"let x be {x.phrase}. let y be {y.phrase}. find {last.phrase}."


@pytest.mark.parametrize(
    ("name", "args", "value"),
    [
        ("gcd", (4821, 1233), 3),
        ("lcm", (12, 18), 36),
        ("power", (17, 3, 997), 4913 % 997),
        ("power_digits", (2, 10), 1 + 0 + 2 + 4),
        ("primes", (2, 20), 8),
        ("multiples", (7, 14, 30), 3),
        ("squares", (4, 7), 30 % 7),
        ("base_digits", (255, 16), 30),
        ("divisors", (28,), 6),
    ],
)
def test_values(name: str, args: tuple[int, ...], value: int) -> None:
    operation = next(o for o in OPERATIONS if o.name == name)
    assert operation.value(*args) == value


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
    assert boxed(text) == answer


@given(st.text(alphabet="\\boxed{}1 "))
def test_boxed_never_raises(text: str) -> None:
    found = boxed(text)
    assert found is None or found in text


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
