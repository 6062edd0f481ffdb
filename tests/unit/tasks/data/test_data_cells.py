"""Messages in a cell of a CSV, where a list of them is text."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from datafiles import read, tasks
from retcon.tasks.data.fields import DataError

SYSTEM = {"role": "system", "content": "Be brief."}
SHOWN = [{"role": "user", "content": "What is 2 plus 2?"}, {"role": "assistant", "content": "4, it's \\frac{8}{2}"}]
ASKED = {"content": "What is 6 times 7?", "role": "user"}


def table(path: Path, *cells: str, column: str = "messages", **more: str) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[column, "answer", *more], *([cell, "42", *more.values()] for cell in cells)])
    return str(path)


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (json.dumps([ASKED, SHOWN[1]]), "column 'messages' does not end with a message of the user"),
        (json.dumps([{"from": "human", "value": "6 * 7?"}]), "is a list, but not of messages with role and content"),
        ("[]", "column 'messages' does not end with a message of the user"),
        (json.dumps(ASKED), "is an object of 2, where text or a number belongs"),
        (f"[{SHOWN[1]}\n {ASKED}]", "column 'messages' is meant as messages, and can be read neither as JSON"),
        (f"[{SYSTEM}\n {ASKED}]", "column 'messages' is a list as NumPy prints it"),
        (json.dumps([ASKED])[:-3] + "…}]", "column 'messages' is meant as messages"),
    ],
    ids=["an answer", "ShareGPT", "none", "one", "NumPy, with braces", "NumPy", "cut"],
)
def test_what_cannot_be_read_is_refused_by_line_and_column(cell: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"a\.csv, line 2: .*{told}"):
        read(table(tmp_path / "a.csv", cell))


@pytest.mark.parametrize(
    "cell",
    [
        '[{"role": "user", "content": "x"}] is a list in Python: how long is it?', "[1, 2, 3]", "{1, 2} ∪ {3}",
        '[{"name": "Ann", "age": 3}]', "[0, 1) is an interval",
    ],
)  # fmt: skip
def test_a_question_that_begins_like_a_list_is_a_question(cell: str, tmp_path: Path) -> None:
    assert [task.question for task in tasks(table(tmp_path / "a.csv", cell, column="question"))] == [cell]
