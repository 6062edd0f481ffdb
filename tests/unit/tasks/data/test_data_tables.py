"""CSV and TSV as they are written elsewhere."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from datafiles import read
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.rows import read_rows

OPTIONS = ["red", "it's blue"]


def rows(path: Path, text: str) -> list[tuple[object, ...]]:
    """Each row's values, and its line."""
    path.write_text(text)
    return [(*row.columns.values(), row.number) for row in read_rows(path)]


def table(path: Path, rows: Sequence[Sequence[str]]) -> str:
    """A file of these values."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('"Start quoted" then more\t5\nb\t6', [('"Start quoted" then more', "5", 2), ("b", "6", 3)]),
        ('5 " disk\t"5"', [('5 " disk', "5", 2)]),
        ('"a ""b"" c"\t5', [('a "b" c', "5", 2)]),
        ('"a\n\tb"\t5\nc\t6', [("a\n\tb", "5", 2), ("c", "6", 4)]),
        ('5\t"a\nb"\nc\t6', [("5", "a\nb", 2), ("c", "6", 4)]),
        ('5\t"a\nb\tc\n\n"d" e\tf', [("5", '"a', 2), ("b", "c", 3), ('"d" e', "f", 5)]),
        ('"a\tb\nc\td', [('"a', "b", 2), ("c", "d", 3)]),
        ('"a\tb"\nc\td', [('"a', 'b"', 2), ("c", "d", 3)]),
    ],
)
def test_quotes_in_a_tsv_are_what_they_can_be(lines: str, found: list[tuple[object, ...]], tmp_path: Path) -> None:
    assert rows(tmp_path / "a.tsv", f"question\tanswer\n{lines}\n") == found


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('a\tb\n"c" d\te\tf', "line 3: no CSV: "),
        ("a\tb\tc", r"line 2: 3 values, .* \(question, answer\): is a tab unquoted"),
    ],
)
def test_a_tsv_whose_lines_differ_is_refused(lines: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=told):
        rows(tmp_path / "a.tsv", f"question\tanswer\n{lines}\n")


@pytest.mark.parametrize("options", [json.dumps(OPTIONS), str(OPTIONS), str({"text": OPTIONS, "label": ["A", "B"]})])
def test_options_in_a_cell_are_a_list_as_json_or_python_write_it(options: str, tmp_path: Path) -> None:
    source = read(table(tmp_path / "a.csv", [["question", "choices", "answer"], ["Which?", options, "B"]]))
    ((question, answer),) = [(placed.task.question, placed.task.answer) for placed in source.train]
    assert (question, answer) == ("Which?\n\nA. red\nB. it's blue", "B")


@pytest.mark.parametrize(
    "options", ["['red' 'blue']", "['red'\n 'blue']", "[1 2]", "{'text': array(['red'], dtype=object), 'label': []}"]
)
def test_lists_as_numpy_prints_them_are_refused_by_name(options: str, tmp_path: Path) -> None:
    values = [["question", "choices", "answer"], ["Which?", options, "A"]]
    with pytest.raises(DataError, match=r"line 2: column 'choices' is a list as NumPy prints it.*json\.dumps"):
        read(table(tmp_path / "a.csv", values))
    values = [["text", "test_list"], ["Write f.", options]]
    with pytest.raises(DataError, match=r"line 2: column 'test_list' is a list as NumPy prints it.*json\.dumps"):
        read(table(tmp_path / "b.csv", values))
    for column in "tests", "input_output":
        (placed,) = read(table(tmp_path / "c.csv", [["question", column], ["Write f.", options]])).train
        assert "is a list as NumPy prints it" in placed.unread
