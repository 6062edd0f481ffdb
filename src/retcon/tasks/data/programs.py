"""Conventions of tasks whose answers are programs, graded by tests: HumanEval, MBPP and LiveCodeBench.

The tests stay in a task's `meta`, under the names that the data set gives them; nothing here unpacks or runs them.
"""

from __future__ import annotations

from dataclasses import replace

from retcon.tasks.data.conventions import Convention, first_of, item, register
from retcon.tasks.data.fields import Columns, Item, Misfit, text

CODE = "code"
"""The grader of tasks with tests."""
_MBPP_ASKS = ("question", "text", "query", "prompt")
_MBPP_TESTS = ("test_list", "tests")


def _humaneval(row: Columns) -> Item:
    """The prompt is the beginning of a function, whose imports and helpers the tests' way of calling needs: it stays in
    `meta` as well."""
    read = item(row, "prompt", "")
    start = read.question.strip("\n")
    how = "Complete this Python program, and answer with the whole of it in one block of code."
    asked = f"{how}\n\n```python\n{start}\n```"
    return replace(read, question=asked, meta={**read.meta, "prompt": row["prompt"]})


def _mbpp(row: Columns) -> Item:
    """The tests are shown, as by its authors (arXiv 2108.07732): only they say what the function is called."""
    column = first_of(row, _MBPP_TESTS)
    tests = row[column]
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise Misfit(column, "is not a list of tests, each a line of Python")
    read = item(row, first_of(row, _MBPP_ASKS), "")
    shown = "\n".join(tests)
    asked = (
        f"{read.question.strip()} Answer with one block of Python. These tests must pass:\n\n```python\n{shown}\n```"
    )
    return replace(read, question=asked)


def _livecodebench(row: Columns) -> Item:
    read = item(row, "question_content", "")
    start = text(row, "starter_code").strip("\n")
    how = (
        f"Answer with one block of Python that begins so:\n\n```python\n{start}\n```"
        if start
        else "Answer with one block of Python: a program that reads standard input and prints the answer."
    )
    return replace(read, question=f"{read.question.strip()}\n\n{how}", source=read.source or text(row, "platform"))


register(Convention("humaneval", ("prompt", "test", "entry_point"), _humaneval, CODE))
register(
    Convention("livecodebench", ("question_content", "public_test_cases|private_test_cases"), _livecodebench, CODE)
)
register(Convention("mbpp", ("|".join(_MBPP_ASKS), "|".join(_MBPP_TESTS)), _mbpp, CODE, certainty=1))
