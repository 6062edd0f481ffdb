"""Rows whose answers are programs: what is asked of them, whatever their tests look like."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from datafiles import ROWS, read, tasks, write
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.grading.cases import Call, Check, Stdio, read_tests

CASE = {"input": "1", "output": "2"}
CALLED = {"fn_name": "f", "inputs": [[1]], "outputs": [[2]]}
PRINTS = "a program that reads standard input and prints the answer."


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"question": "Add.", "input_output": json.dumps({"inputs": ["1"], "outputs": ["2"]})}, PRINTS),
        ({"question": "Add.", "starter_code": "def f(a):\n\t", "input_output": json.dumps(CALLED)},
         "begins so:\n\n```python\ndef f(a):\n\t\n```"),
        ({"question": "Add.", "starter_code": "", "input_output": CALLED}, "that defines `f`."),
        ({"question": "Add.", "grader": "code", "tests": [CASE]}, PRINTS),
        ({"question": "Add.", "answer": "", "tests": [CASE]}, PRINTS),
        ({"problem": "Add.", "solutions": ["?"], "metadata": "{}", "tests": json.dumps([CASE])}, PRINTS),
        ({"problem": "Add.", "tests": [{**CASE, "type": "function_call", "fn_name": "f"}]}, "that defines `f`."),
        ({"question": "Write f.", "tests": "assert f(1) == 2"}, "Answer with one block of Python."),
    ],
)  # fmt: skip
def test_tests_that_are_no_lines_of_python_are_not_shown(row: dict[str, Any], asked: str, tmp_path: Path) -> None:
    (task,) = FileTaskSettings(path=write(tmp_path / "a.jsonl", [row]), evaluation_share=0).open().train(0)
    assert task.question.endswith(asked)
    assert task.question.startswith(f"{row.get('question', row.get('problem'))}\n\nAnswer with one block of Python")
    assert task.meta["grader"] == "code"
    assert len(read_tests(task).cases) == 1


def test_a_row_of_apps_is_read_as_it_is(tmp_path: Path) -> None:
    called = {**ROWS["apps"], "question": "Add one.", "input_output": json.dumps(CALLED)}
    source = read(write(tmp_path / "a.jsonl", [ROWS["apps"], called]))
    assert source.convention == "apps"
    assert [read_tests(placed.task).cases for placed in source.train] == [
        (Stdio("1 2", "3"),), (Call("f", [1], [[2], 2]),),
    ]  # fmt: skip


def test_rows_with_an_answer_are_asked_as_they_are(tmp_path: Path) -> None:
    rows = [
        {"question": "Add.", "answer": "2", "input_output": "{}"},
        {"problem": "Add.", "answer": "2", "tests": [CASE]},
    ]
    for row in rows:
        (placed,) = read(write(tmp_path / "a.jsonl", [{**row, "answer": "2"}])).train
        assert (placed.task.question, placed.task.answer, placed.task.meta["grader"]) == ("Add.", "2", "math")


def test_tests_that_are_the_answer_may_be_long(tmp_path: Path) -> None:
    row = {"question": "Add.", "tests_of_it": json.dumps({"inputs": ["1"] * 9000, "outputs": ["2"] * 9000})}
    path, columns = write(tmp_path / "a.jsonl", [row]), {"answer": "tests_of_it"}
    (placed,) = read(path, columns=columns, grader="code").train
    assert len(read_tests(placed.task).cases) == 9000
    with pytest.raises(DataError, match=r"its answer has .* characters, 20,000 at most"):
        read(path, columns=columns)


CASES = '{"inputs": ["1"], "outputs": ["1"]}'


@pytest.mark.parametrize(
    ("given", "by", "answer"),
    [
        ("", "code", ""), ("code", "code", ""), ("math", "code", ""), ("exact", "code", ""),
        ("my_rewards:style", "my_rewards:style", CASES), ("judge", "judge", CASES),
    ],
)  # fmt: skip
@pytest.mark.parametrize("truth", [CASES, json.loads(CASES)], ids=["text", "object"])
def test_verls_tests_are_graded_by_what_is_given_if_that_takes_more_than_texts(
    given: str, by: str, answer: str, truth: object, tmp_path: Path
) -> None:
    row = {**ROWS["verl"], "reward_model": {"ground_truth": truth}}
    (task,) = tasks(write(tmp_path / "a.jsonl", [row]), grader=given)
    assert (task.meta["grader"], task.answer, task.meta["input_output"]) == (by, answer, truth)
    (named,) = tasks(write(tmp_path / "a.jsonl", [{**row, "grader": "my_rewards:other"}]), grader=given)
    assert (named.meta["grader"], named.answer) == ("my_rewards:other", CASES)


def test_tests_of_any_length_may_be_the_answer_to_a_function(tmp_path: Path) -> None:
    long = json.dumps({"inputs": ["1" * 30_000], "outputs": ["1"]})
    row = {**ROWS["verl"], "reward_model": {"ground_truth": long}}
    assert tasks(write(tmp_path / "a.jsonl", [row]), grader="my_rewards:style")[0].answer == long


@pytest.mark.parametrize("convention", ["humaneval", "mbpp", "apps", "livecodebench"])
def test_programs_can_be_graded_by_a_function_which_has_their_tests(convention: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [ROWS[convention]])
    (task,) = tasks(path, grader="my_rewards:style")
    assert (task.answer, task.meta["grader"]) == ("", "my_rewards:style")
    assert task.meta == {**tasks(path)[0].meta, "grader": "my_rewards:style"}
    assert not tasks(path, grader="exact"), "to which tests say nothing"


DIGITS, NESTED = "7" * 5000, "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ({"input_output": f'{{"fn_name": "f", "inputs": [[{DIGITS}]], "outputs": [1]}}'}, "4300 digits"),
        ({"input_output": f'{{"fn_name": "f", "inputs": [[1]], "outputs": ["{DIGITS}"]}}'}, "4300 digits"),
        ({"input_output": f'{{"fn_name": "f", "inputs": {NESTED}, "outputs": [1]}}'}, "recursion"),
        ({"tests": f'[{{"fn_name": "f", "input": [{DIGITS}], "output": 1}}]'}, "4300 digits"),
        ({"tests": [CASE], "metadata": f'{{"n": {DIGITS}}}'}, "4300 digits"),
    ],
)
def test_tests_that_python_does_not_read_are_refused_by_line(tests: dict[str, Any], why: str, tmp_path: Path) -> None:
    good = {"question": "Add one.", "input_output": json.dumps(CALLED)}
    first, second = read(write(tmp_path / "a.jsonl", [good, {"question": "Add.", **tests}])).train
    assert (first.unread, second.where[-6:]) == ("", "line 2")
    assert second.unread.startswith("its tests cannot be read: ")
    assert why in second.unread


LINES, DOUBLED = ["assert f(1) == 2"], json.dumps({"inputs": ["1"], "outputs": ["2"]})


@pytest.mark.parametrize("answer", [{}, {"answer": "def f(a): ..."}, {"solution": "def f(a): ..."}], ids=list)
@pytest.mark.parametrize("tests", [{"tests": LINES}, {"tests": json.dumps(LINES)}, {"test_list": json.dumps(LINES)}])
@pytest.mark.parametrize("asks", ["question", "Question", "problem", "Problem", "instruction", "prompt", "messages"])
def test_tests_that_are_lines_of_python_are_shown_whatever_asks_and_answers(
    asks: str, tests: dict[str, Any], answer: dict[str, str], tmp_path: Path
) -> None:
    asked: Any = [{"role": "user", "content": "Add."}] if asks == "messages" else "Add."
    source = read(write(tmp_path / "a.jsonl", [{asks: asked, **answer, **tests}]))
    ((task, unread),) = [(placed.task, placed.unread) for placed in source.train]
    assert (source.convention, task.meta["grader"], task.answer, unread) == ("mbpp", "code", "", "")
    assert task.question.startswith("Add. ")
    assert task.question.endswith(f"These tests must pass:\n\n```python\n{LINES[0]}\n```")
    assert read_tests(task).cases == (Check(LINES[0]),)


@pytest.mark.parametrize("tests", [LINES, LINES[0], [CASE]], ids=str)
@pytest.mark.parametrize("grader", ["math", "exact", "judge"])
def test_a_row_whose_own_grader_compares_answers_keeps_its_answer(grader: str, tests: Any, tmp_path: Path) -> None:
    for asks in "problem", "question":
        compared = {asks: "Add.", "answer": "2", "tests": tests, "grader": grader}
        for others in [], [{asks: "Write f.", "answer": "", "tests": tests, "grader": "code"}]:
            *_, task = tasks(write(tmp_path / "a.jsonl", [*others, compared]))
            assert (task.meta["grader"], task.question, task.answer) == (grader, "Add.", "2")


@pytest.mark.parametrize("tests", ["def test_f():\n    assert f(1) == 2\n", [CASE]])
def test_a_solution_beside_tests_is_a_program_unless_it_boxes_an_answer(tests: Any, tmp_path: Path) -> None:
    row = {"problem": "Write f.", "solution": "def f(a): ...", "tests": tests}
    (task,) = tasks(write(tmp_path / "a.jsonl", [row]))
    assert (task.meta["grader"], task.answer, len(read_tests(task).cases)) == ("code", "", 1)
    boxed = {"problem": "Add.", "solution": r"It is $\boxed{2}$.", "tests": [CASE]}
    (task,) = tasks(write(tmp_path / "b.jsonl", [boxed]))
    assert (task.meta["grader"], task.answer) == ("math", "2")


def test_cases_that_are_each_a_text_of_json_are_cases(tmp_path: Path) -> None:
    called = {**CASE, "fn_name": "f"}
    for case, asked, read_as in (CASE, PRINTS, Stdio("1", "2")), (called, "that defines `f`.", Call("f", [1], [2])):
        for tests in [json.dumps(case)], json.dumps([json.dumps(case)]):
            (task,) = tasks(write(tmp_path / "a.jsonl", [{"question": "Add.", "answer": "", "tests": tests}]))
            assert task.question.endswith(asked)
            assert read_tests(task).cases == (read_as,)


def test_lines_of_python_and_cases_may_stand_in_one_file(tmp_path: Path) -> None:
    lines = {"question": "Write f.", "tests": LINES}
    for cases in {"tests": [CASE]}, {"tests": None, "input_output": DOUBLED}:
        rows = [lines, {"question": "Add.", **cases}]
        for some in rows, rows[::-1]:
            found = {task.question[:4]: task for task in tasks(write(tmp_path / "a.jsonl", some))}
            assert found["Writ"].question.endswith(f"```python\n{LINES[0]}\n```")
            assert found["Add."].question.endswith(PRINTS)


@pytest.mark.parametrize("nothing", [[], {}, "[]", "{}"], ids=str)
@pytest.mark.parametrize("column", ["test_list", "tests"])
def test_rows_whose_list_of_tests_is_empty_are_left_out(column: str, nothing: object, tmp_path: Path) -> None:
    rows = [{"text": "Write f.", column: LINES}, {"text": "Write g.", column: nothing}]
    for some in rows, rows[::-1]:
        source = read(write(tmp_path / "a.jsonl", some))
        assert (len(source.train), dict(source.dropped)) == (1, {"without tests": 1})


def test_a_first_row_with_a_solution_and_no_tests_does_not_make_its_file_one_of_mathematics(tmp_path: Path) -> None:
    row = {"problem": "Write f.", "solution": "def f(a): ..."}
    source = read(write(tmp_path / "a.jsonl", [{**row, "tests": []}, {**row, "tests": LINES}]))
    assert (source.convention, dict(source.dropped)) == ("mbpp", {"without tests": 1})


@pytest.mark.parametrize("column", ["answer", "solution"])
@pytest.mark.parametrize("tests", [{"tests": []}, {"input_output": None}])
def test_an_empty_column_of_tests_beside_an_answer_leaves_the_answer(
    column: str, tests: dict[str, Any], tmp_path: Path
) -> None:
    (task,) = tasks(write(tmp_path / "a.jsonl", [{"problem": "Add.", column: "2", **tests}]))
    assert (task.meta["grader"], task.answer) == ("math", "2")


@pytest.mark.parametrize(
    ("none", "some", "convention"),
    [
        ({"prompt": "Add.", "tests": None}, {"prompt": "Write f.", "tests": LINES}, "mbpp"),
        ({"text": "Add.", "test_list": None}, {"text": "Write f.", "test_list": LINES}, "mbpp"),
        ({"question": "Add.", "tests": None}, {"question": "Write f.", "tests": [CASE]}, "apps"),
        ({"problem": "Add.", "tests": None}, {"problem": "Write f.", "tests": [CASE]}, "apps"),
        ({"question": "Add.", "answer": "", "tests": None}, {"question": "Write f.", "tests": [CASE]}, "apps"),
        ({"question": "Add.", "input_output": ""}, {"question": "Write f.", "input_output": DOUBLED}, "apps"),
        ({"question": "Add.", "input_output": math.nan}, {"question": "Write f.", "input_output": DOUBLED}, "apps"),
    ],
)
def test_rows_without_tests_are_left_out_wherever_they_stand(
    none: dict[str, Any], some: dict[str, Any], convention: str, tmp_path: Path
) -> None:
    for line, rows in (1, [none, some]), (2, [some, none]):
        source = read(write(tmp_path / "a.jsonl", rows))
        assert (source.convention, len(source.train), dict(source.dropped)) == (convention, 1, {"without tests": 1})
        assert source.train[0].where.endswith(f"line {3 - line}")
    of_tests = [{**row, "split": name} for row, name in ((none, "test"), (some, "train"))]
    assert dict(read(write(tmp_path / "a.jsonl", of_tests), split="train").dropped) == {"of another split": 1}


@pytest.mark.parametrize("answer", [{"answer": "B"}, {"answerKey": "B"}, {"answer_index": 1}, {"label": 1}], ids=list)
@pytest.mark.parametrize(
    "unused",
    [
        *({name: value} for name in ("input_output", "tests", "test_list") for value in ("", None)),
        {"input_output": "{}"},
        {"tests": []},
    ],
)
def test_a_row_that_names_an_option_is_one_of_choices_beside_an_empty_column_of_tests(
    answer: dict[str, Any], unused: dict[str, Any], tmp_path: Path
) -> None:
    row = {"question": "Which?", "choices": ["red", "blue"], **answer, **unused}
    source = read(write(tmp_path / "a.jsonl", [row]))
    assert (source.convention, [placed.task.answer for placed in source.train]) == ("choices", ["B"])


def test_the_options_of_a_row_are_in_the_column_that_holds_some(tmp_path: Path) -> None:
    row = {"question": "Which?", "choices": None, "options": ["red", "blue"], "label": 1, "test_list": []}
    source = read(write(tmp_path / "a.jsonl", [row]))
    assert (source.convention, [placed.task.answer for placed in source.train]) == ("choices", ["B"])


def test_and_one_of_programs_beside_empty_columns_of_options(tmp_path: Path) -> None:
    for options in {"choices": None, "answerKey": ""}, {"options": ["-O2", "-g"], "label": 1}:
        row = {"question": "Add.", **options, "input_output": DOUBLED}
        assert read(write(tmp_path / "a.jsonl", [row])).convention == "apps"


def test_empty_lists_of_options_are_none_beside_rows_with_tests(tmp_path: Path) -> None:
    for nothing in [], {}:
        rows = [{"question": f"Add {n}.", "choices": nothing, "label": 0, "input_output": ""} for n in range(2)]
        source = read(write(tmp_path / "a.jsonl", [rows[0], {**rows[1], "input_output": DOUBLED}]))
        assert (source.convention, dict(source.dropped)) == ("apps", {"without tests": 1})


def test_a_file_of_rows_without_tests_is_of_no_known_convention(tmp_path: Path) -> None:
    rows = [{"question": f"Add {n}.", "answer": "3", "tests": None} for n in range(2)]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=r"line 1: no known convention: the row has no tests, .* by `format`"):
        read(path)
    assert len(read(path, format="plain").train) == 2


def test_tests_may_stand_beside_an_empty_column_of_tests(tmp_path: Path) -> None:
    (placed,) = read(write(tmp_path / "a.jsonl", [{"text": "Add.", "test_list": None, "tests": LINES}])).train
    assert placed.task.question.endswith(f"```python\n{LINES[0]}\n```")
    (placed,) = read(write(tmp_path / "a.jsonl", [{"question": "?", "tests": None, "input_output": DOUBLED}])).train
    assert placed.task.question.endswith(PRINTS)
