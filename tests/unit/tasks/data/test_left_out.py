"""Rows that are marked to be left out, and rows that leave out a column that others have."""

from __future__ import annotations

from pathlib import Path

import pytest

from datafiles import ROWS, questions, read, tasks, write
from retcon.core.errors import TaskWarning
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.load import load
from retcon.tasks.data.settings import FileTaskSettings


def test_duplicates_can_be_kept_and_marks_be_ignored(tmp_path: Path) -> None:
    rows = [{**row, "eval_overlap": "x"} for row in questions(2)]
    found = tasks(write(tmp_path / "a.jsonl", rows * 2), duplicates="keep", marked=[])
    assert len(found) == len({task.id for task in found}) == 4


@pytest.mark.parametrize("no", [False, 0, 0.0, None, "", "false", "False", " no", "0", []])
def test_a_mark_that_says_no_is_none(tmp_path: Path, no: object) -> None:
    rows = [{**row, "eval_overlap": no} for row in questions(3)]
    rows[2]["eval_overlap"] = True
    assert [task.answer for task in tasks(write(tmp_path / "a.jsonl", rows))] == ["0", "2"]


@pytest.mark.parametrize("yes", [True, 1, "true", "math500", "none of it", ["aime"]])
def test_any_other_mark_is_one(tmp_path: Path, yes: object) -> None:
    rows = questions(3)
    rows[1]["eval_overlap"] = yes
    assert len(tasks(write(tmp_path / "a.jsonl", rows))) == 2


def test_a_column_of_marks_that_no_row_has_is_told_with_the_nearest(tmp_path: Path) -> None:
    rows = [*questions(3), {"question": "seen before", "answer": "1", "contaminated": True}]
    path, other = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", questions(2))
    assert len(tasks(path, marked="contaminated")) == 3
    with pytest.warns(TaskWarning, match=r"marked: no row .* a column 'contaminate' \(did you mean 'contaminated'\?\)"):
        assert len(tasks(path, marked=["eval_overlap", "contaminate"])) == 4
    for sources in ((other, path), (path, other)):
        about = {"sources": sources, "marked": ("contaminated",), "evaluation_share": 0}
        mixed = FileTaskSettings.model_validate(about)
        assert [source.dropped["marked to be left out"] for source in load(mixed).sources].count(1) == 1


def test_a_grader_that_there_is_not_is_no_fault_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^task\.grader: no grader 'mth' \(did you mean 'math'\?\)"):
        read(write(tmp_path / "a.jsonl", questions(1)), grader="mth")


def test_a_column_of_marks_may_also_be_mapped(tmp_path: Path) -> None:
    rows = [{**row, "used_for": ""} for row in questions(3)]
    rows[1]["used_for"] = "test"
    path, columns = write(tmp_path / "a.jsonl", rows), {"source": "used_for"}
    for name in ("used_for", "source"):
        assert [task.answer for task in tasks(path, marked=name, columns=columns)] == ["0", "4"]


def test_a_column_that_a_later_row_leaves_out_is_as_null(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "1", "answer_note": "easy"}, {"question": "b", "answer": None},
            {"question": "c"}, {"question": "d", "answer_note": "open"}, {"answer": "2"}]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    assert read(path).where_dropped == {
        "without an answer": [f"{path}, line {line}" for line in (2, 3, 4)],
        "without a question": [f"{path}, line 5"],
    }
    mapped = [{"body": {"text": f"Which {n}?"}, "label": "1"} for n in range(3)]
    del mapped[1]["body"], mapped[2]["label"]
    about = {"question": "body.text", "answer": "label"}
    assert read(write(tmp_path / "b.jsonl", mapped), columns=about).dropped == {
        "without a question": 1, "without an answer": 1
    }  # fmt: skip
    tests = [ROWS["humaneval"], {**ROWS["humaneval"], "task_id": 1}]
    del tests[1]["test"]
    assert read(write(tmp_path / "c.jsonl", tests)).dropped == {"without tests": 1}


@pytest.mark.parametrize(
    ("row", "columns", "said"),
    [
        ({"question": "x", "anwser": "1"}, {}, "line 2: lacks column answer .*did you mean 'anwser'"),
        ({"text": "x", "label": "1"}, {}, "line 2: lacks column question.* it has: text, label"),
        ({"question": "x", "anwser": "1"}, {"answer": "answer"}, "line 2: no column 'answer' .did you mean 'anwser'"),
        ({"problem": "x", "answer": "1"}, {}, "line 2: lacks column question.* it has: problem, answer"),
        ({"question": "x", "solution": "1"}, {}, "line 2: lacks column answer"),
        ({"problem": "x", "answer": "1"}, {"question": "question"}, "line 2: no column 'question'"),
    ],
)
def test_a_column_that_a_later_row_calls_otherwise_is_refused(
    row: dict[str, str], columns: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "a", "answer": "#### 1"}, row])
    with pytest.raises(DataError, match=said):
        read(path, columns=columns)


def test_choices_that_an_evaluation_leaves_out_are_told(tmp_path: Path) -> None:
    held = write(tmp_path / "e.jsonl", [ROWS["choices"], {"question": "Which?", "answer": 1}])
    with pytest.raises(DataError, match="line 2: lacks column choices or options"):
        read(write(tmp_path / "a.jsonl", [ROWS["plain"]]), against=held)


def test_of_an_evaluation_that_is_held_against_only_questions_count(tmp_path: Path) -> None:
    held = write(tmp_path / "e.jsonl", [{"question": "x", "answer": "1"}, {"question": "a", "answers": ["1", "2"]}])
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    assert read(write(tmp_path / "a.jsonl", rows), against=held, overlap="drop").dropped == {
        "overlapping with evaluation": 1
    }


def test_a_file_of_a_folder_is_judged_by_its_own_columns(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"q": "a", "a": "1"}])
    other = write(tmp_path / "b.jsonl", [{"question": "b", "answer": "2"}])
    about = {"columns": {"question": "q", "answer": "a"}}
    with pytest.raises(DataError, match=f"^{other}, line 1: no column 'q'"):
        read(str(tmp_path), **about)
    write(tmp_path / "a.jsonl", [{"question": "a", "answer": "#### 1"}])
    write(tmp_path / "b.jsonl", [{"problem": "b", "answer": "2", "id": "7"}, {"problem": "c", "id": "8"}])
    with pytest.raises(DataError, match=f"^{other}, line 1: lacks column question"):
        read(str(tmp_path))


def test_what_the_first_row_of_a_shard_leaves_out_is_null_too(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}])
    shard = write(
        tmp_path / "b.jsonl", [{"question": "c"}, {"question": "e", "note": "?"}, {"question": "d", "answer": "3"}]
    )
    assert read(str(tmp_path)).where_dropped == {"without an answer": [f"{shard}, line {n}" for n in (1, 2)]}


@pytest.mark.parametrize("row", [{}, {"about": None}, {"about": {}}])
def test_what_a_row_is_for_is_never_left_out(row: dict[str, object], tmp_path: Path) -> None:
    rows = [{**one, "about": {"fold": fold}} for one, fold in zip(questions(3), ("train", "test", ""), strict=True)]
    about = {"columns": {"split": "about.fold"}, "evaluation_split": "test"}
    path = write(tmp_path / "a.jsonl", rows)
    assert len(read(path, **about).train) == 2
    write(tmp_path / "a.jsonl", [*rows, {"question": "Why?", "answer": "1", **row}])
    with pytest.raises(DataError, match=r"line 4: no column 'about.fold'"):
        read(path, **about)
    with pytest.raises(DataError, match="line 1: column 'split' is an object of 1, where text or a number belongs"):
        read(path, columns={"split": "about"}, evaluation_split="test")


def test_a_split_that_is_there_and_empty_is_one_like_any_other(tmp_path: Path) -> None:
    rows = [{**one, "split": fold} for one, fold in zip(questions(4), ("train", "test", None, ""), strict=True)]
    path = write(tmp_path / "a.jsonl", rows)
    assert len(read(path, evaluation_split="test").train) == 3
    found = read(path, split="train")
    assert (len(found.train), dict(found.dropped)) == (1, {"of another split": 3})
