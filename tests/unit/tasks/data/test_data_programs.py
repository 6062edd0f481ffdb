"""Rows whose answers are programs: what is asked of them, whatever their tests look like."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from datafiles import ROWS, read, tasks, write
from retcon.tasks.data.fields import DataError
from retcon.tasks.grading.cases import Call, Stdio, read_tests

CASE = {"input": "1", "output": "2"}
CALLED = {"fn_name": "f", "inputs": [[1]], "outputs": [[2]]}


def test_a_row_of_apps_is_read_as_it_is(tmp_path: Path) -> None:
    called = {**ROWS["apps"], "question": "Add one.", "input_output": json.dumps(CALLED)}
    source = read(write(tmp_path / "a.jsonl", [ROWS["apps"], called]))
    assert source.convention == "apps"
    assert [read_tests(placed.task).cases for placed in source.train] == [
        (Stdio("1 2", "3"),), (Call("f", [1], [[2], 2]),),
    ]  # fmt: skip


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


@pytest.mark.parametrize("tests", [LINES, LINES[0], [CASE]], ids=str)
@pytest.mark.parametrize("grader", ["math", "exact", "judge"])
def test_a_row_whose_own_grader_compares_answers_keeps_its_answer(grader: str, tests: Any, tmp_path: Path) -> None:
    for asks in "problem", "question":
        compared = {asks: "Add.", "answer": "2", "tests": tests, "grader": grader}
        for others in [], [{asks: "Write f.", "answer": "", "tests": tests, "grader": "code"}]:
            *_, task = tasks(write(tmp_path / "a.jsonl", [*others, compared]))
            assert (task.meta["grader"], task.question, task.answer) == (grader, "Add.", "2")


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


def test_the_options_of_a_row_are_in_the_column_that_holds_some(tmp_path: Path) -> None:
    row = {"question": "Which?", "choices": None, "options": ["red", "blue"], "label": 1, "test_list": []}
    source = read(write(tmp_path / "a.jsonl", [row]))
    assert (source.convention, [placed.task.answer for placed in source.train]) == ("choices", ["B"])


def test_a_file_of_rows_without_tests_is_of_no_known_convention(tmp_path: Path) -> None:
    rows = [{"question": f"Add {n}.", "answer": "3", "tests": None} for n in range(2)]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=r"line 1: no known convention: the row has no tests, .* by `format`"):
        read(path)
    assert len(read(path, format="plain").train) == 2
