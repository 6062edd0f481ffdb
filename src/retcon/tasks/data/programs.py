"""Conventions of tasks whose answers are programs, graded by tests: HumanEval, MBPP, LiveCodeBench and APPS.

The tests stay in a task's `meta`, under the names that the data set gives them; nothing here unpacks or runs them.
"""

from __future__ import annotations

from dataclasses import replace

from retcon.tasks.data.conventions import ANSWERS, QUESTIONS, Convention, first_of, item, names_option, register
from retcon.tasks.data.fields import Columns, Item, Misfit, empty, missing, text
from retcon.tasks.graders.text import rational
from retcon.tasks.grading.cases import as_printed, function_named, lines_of

CODE = "code"
"""The grader of tasks with tests."""
_MBPP_ASKS = ("question", "text", "query", "prompt")
_ASKS = (*_MBPP_ASKS, *(name for name in QUESTIONS if name not in _MBPP_ASKS))
_MBPP_TESTS = ("test_list", "tests")
_APPS_TESTS = ("input_output", "tests")
_COMPARING = ("math", "exact", "judge")
"""Graders that compare answers, whatever tests stand beside them."""


def _humaneval(row: Columns) -> Item:
    """The prompt is the beginning of a function, whose imports and helpers the tests' way of calling needs: it stays in
    `meta` as well."""
    read = item(row, "prompt", "")
    start = read.question.strip("\n")
    how = "Complete this Python program, and answer with the whole of it in one block of code."
    asked = f"{how}\n\n```python\n{start}\n```"
    return replace(read, question=asked, bare=start, meta={**read.meta, "prompt": row["prompt"]})


def _mbpp(row: Columns) -> Item:
    """The tests are shown, as by its authors (arXiv 2108.07732): only they say what the function is called."""
    if _compared(row):
        return item(row, first_of(row, _ASKS), first_of(row, (name for name in ANSWERS if not missing(row.get(name)))))
    read = item(row, first_of(row, _ASKS), "")
    column = first_of(row, (name for name in _MBPP_TESTS if not empty(row.get(name))))
    if (lines := lines_of(row.get(column))) is None:
        if column == "test_list":
            raise Misfit(column, as_printed(row.get(column)) or "is not a list of tests, each a line of Python")
        return _with_how(read, row)
    shown = "\n".join(lines)
    asked = (
        f"{read.question.strip()} Answer with one block of Python. These tests must pass:\n\n```python\n{shown}\n```"
    )
    return replace(read, question=asked)  # without our few words the tests would hide that a question is known


def _of_mbpp(row: Columns) -> bool:
    """`tests` may be those of another convention, and a row without any of it, too, unless it asks as MBPP's do."""
    lines = any(lines_of(row.get(name)) for name in _MBPP_TESTS)
    return not (_only_chooses(row) or _compared(row)) and (lines or ("test_list" in row and _asks_as_mbpp(row)))


def _compared(row: Columns) -> bool:
    """Whether it names a grader that compares its answer."""
    return row.get("grader") in _COMPARING and not all(missing(row.get(name)) for name in ANSWERS)


def _asks_as_mbpp(row: Columns) -> bool:
    return any(name in row for name in _MBPP_ASKS)


def _without_tests(row: Columns) -> bool:
    return all(empty(row.get(name)) for name in _APPS_TESTS)


def _only_chooses(row: Columns) -> bool:
    """Whether it names an option, and its columns of tests hold none, as where rows of several kinds have one table."""
    return names_option(row) and all(empty(row.get(name)) for name in {*_APPS_TESTS, *_MBPP_TESTS})


def _untold(row: Columns) -> bool:
    """Whether other rows may have the tests that it lacks."""
    return _without_tests(row) and _asks_for_programs(row)


def _asks_for_programs(row: Columns) -> bool:
    """Rows with an answer beside `input_output`, or `tests` that may be others, are of the conventions that read it; a
    solution that has no box and is no number is a program."""
    solution = str(row.get("solution"))
    solved = "\\boxed" in solution or rational(solution) is not None
    answered = solved or any(name in row for name in ANSWERS if name != "solution")
    tests = row.get("tests")
    tested = "tests" in row and (_asks_as_mbpp(row) or (isinstance(tests, str) and "assert" in tests))
    return not _only_chooses(row) and (tested or not answered)


def _livecodebench(row: Columns) -> Item:
    read = item(row, "question_content", "")
    return replace(_with_how(read, row), source=read.source or text(row, "platform"))


def _apps(row: Columns) -> Item:
    """Also TACO, and rows whose `tests` are cases, or Python in one text: they are not shown, as they are many. Lines
    of Python, and answers that are compared, are read as in mbpp: they may stand in other rows."""
    if _compared(row) or lines_of(row.get("tests")):
        return _mbpp(row)
    read = item(row, first_of(row, QUESTIONS), "")
    return _with_how(read, row)


def _of_apps(row: Columns) -> bool:
    return not (_without_tests(row) or _compared(row)) and _asks_for_programs(row)


def _with_how(read: Item, row: Columns) -> Item:
    """Its question says what kind of program answers it."""
    start = text(row, "starter_code").strip("\n")
    if start:
        how = f"Answer with one block of Python that begins so:\n\n```python\n{start}\n```"
    elif isinstance(tests := row.get("tests"), str) and not tests.lstrip().startswith(("[", "{")):
        how = "Answer with one block of Python."
    elif name := function_named(row):
        how = f"Answer with one block of Python that defines `{name}`."
    else:
        how = "Answer with one block of Python: a program that reads standard input and prints the answer."
    return replace(read, question=f"{read.question.strip()}\n\n{how}", bare=read.question)


register(Convention("humaneval", ("prompt", "test", "entry_point"), _humaneval, CODE))
register(
    Convention("livecodebench", ("question_content", "public_test_cases|private_test_cases"), _livecodebench, CODE)
)
register(Convention("mbpp", ("|".join(_ASKS), "|".join(_MBPP_TESTS)), _mbpp, CODE, _of_mbpp, 1,
                    untold=_untold))  # fmt: skip
register(Convention("apps", ("|".join(QUESTIONS), "|".join(_APPS_TESTS)), _apps, CODE, _of_apps, 1,
                    untold=_untold))  # fmt: skip
