"""Whether a text overlaps with questions of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datafiles import LONG, ROWS, questions, read, tasks, write
from retcon.core.errors import TaskWarning
from retcon.tasks.data.check import check
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.load import EvaluationIndex, load, questions_of
from retcon.tasks.data.settings import FileTaskSettings


def test_a_drawing_is_no_words() -> None:
    index = EvaluationIndex([("a", f"{LONG}. [asy] draw((0,0)--(1,2)); [/asy] How many?")])
    assert index.match(f"{LONG}. [asy] {'label(x); ' * 99} [/asy] Why?") is not None
    assert index.match("[asy] draw((0,0)--(1,2)); [/asy] How many?") is None


def test_half_of_a_question_is_not_enough() -> None:
    half = " ".join(f"w{n}" for n in range(13))
    index = EvaluationIndex([("a", half + " " + " ".join(f"v{n}" for n in range(13)))])
    assert index.match(half) is None
    assert index.match(f"{half} v0") is not None


def named_otherwise(count: int) -> list[dict[str, Any]]:
    return [{"text": row["question"], "label": row["answer"]} for row in questions(count)]


def test_an_evaluation_is_read_by_the_columns_that_were_given_where_it_has_no_known_ones(tmp_path: Path) -> None:
    own, known = write(tmp_path / "own.jsonl", named_otherwise(3)), write(tmp_path / "known.jsonl", questions(1))
    against = (write(tmp_path / "eval.jsonl", named_otherwise(2)), known)
    columns = {"question": "text", "answer": "label"}
    of_all = FileTaskSettings(path=own, columns=columns, against=against, evaluation_share=0)
    of_one = FileTaskSettings.model_validate(
        {"sources": [{"path": own, "columns": columns}], "against": against, "evaluation_share": 0}
    )
    assert [[where for where, *_ in check(one).overlap] for one in (of_all, of_one)] == [
        [f"{own}, line 1", f"{own}, line 2"]
    ] * 2


def test_one_that_has_neither_is_refused(tmp_path: Path) -> None:
    own, other = write(tmp_path / "own.jsonl", named_otherwise(3)), write(tmp_path / "b.jsonl", [{"body": "x"}])
    settings = FileTaskSettings(path=own, columns={"question": "text", "answer": "label"}, against=(other,))
    with pytest.raises(DataError, match=r"b\.jsonl, line 1: no known convention: the row has columns body"):
        settings.open()


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Why?", "answer": 1},
        {"question": "Why?", "answer": "#### 1"},
        {"prompt": "Why?", "test": "", "entry_point": "f"},
        {"text": "Why?", "test_list": ["assert f() == 1"]},
        {"prompt": [{"role": "user", "content": "Why?"}], "reward_model": {"ground_truth": "1"}},
    ],
)
def test_a_row_that_calls_its_question_otherwise_is_read_all_the_same(row: dict[str, object], tmp_path: Path) -> None:
    others = {name: value for name, value in row.items() if name not in ("question", "prompt", "text")}
    held = write(tmp_path / "e.jsonl", [row, {"problem": "How?", **others}])
    (_, first), (_, other) = questions_of(held)
    assert "Why?" in first
    assert other.removesuffix(first.removeprefix("Why?")) == "How?"


def test_what_an_evaluation_without_answers_asks_is_as_columns_say(tmp_path: Path) -> None:
    held = write(tmp_path / "e.jsonl", [{"q": "Why?", "prompt": "Be brief."}])
    mapping = [{}, {"answer": "a"}, {"question": "text", "answer": "a"}, {"question": "q", "answer": "a"}]
    assert [text for _, text in questions_of(held, mapping)] == ["Why?"]
    assert [text for _, text in questions_of(held, mapping[:3])] == ["Be brief."]
    with pytest.raises(DataError, match=r"line 1: column 'prompt' is an object"):
        list(questions_of(write(tmp_path / "b.jsonl", [{"prompt": {"text": "Why?"}}])))


def livecodebench(asked: str, **more: object) -> dict[str, Any]:
    return {
        "question_title": "A", "question_content": asked, "platform": "atcoder", "question_id": asked[:9],
        "contest_date": "2024-01-01", "starter_code": "", "difficulty": "easy", "metadata": "{}",
        "public_test_cases": '[{"input": "1\\n", "output": "2\\n", "testtype": "stdin"}]', **more,
    }  # fmt: skip


def test_words_of_ours_on_how_to_answer_make_no_two_problems_alike(tmp_path: Path) -> None:
    first, other = "Print the sum of A and B.", "How many letters has S?"
    held = write(tmp_path / "held.jsonl", [livecodebench(first)])
    own = write(tmp_path / "own.jsonl", [livecodebench(first, starter_code="def f():"), livecodebench(other)])
    settings = FileTaskSettings(path=own, against=(held,), evaluation_share=0)
    (overlap,) = check(settings).overlap
    assert overlap[0] == f"{own}, line 1", "and a problem with another beginning is the same"


def test_what_of_a_problem_is_found_again_is_a_share_of_its_own_words(tmp_path: Path) -> None:
    """Ours stand in all of the evaluation, so that no run of them counts."""
    asked = [f"{LONG} {n}" for n in range(12)]
    index = EvaluationIndex(questions_of(write(tmp_path / "held.jsonl", [livecodebench(one) for one in asked])))
    assert index.match(f"{asked[3]} ") is not None
    mixed = [*asked[:1], *(" ".join(f"w{n}x{k}" for k in range(14)) for n in range(12))]
    index = EvaluationIndex(questions_of(write(tmp_path / "mixed.jsonl", [livecodebench(one) for one in mixed])))
    assert index.match(f"{mixed[3]} Explain how you found it.") is not None


def test_a_question_with_other_tests_is_the_same_problem(tmp_path: Path) -> None:
    asked = "Write a function to find the sum of all the even numbers in a given list of integers."
    files = [
        write(
            tmp_path / f"{name}.jsonl",
            [{"text": asked, "test_list": [f"assert {name}([{n}, 2, 3]) == 4" for n in range(4)]}],
        )
        for name in ("f", "total")
    ]
    for own, other in (files, files[::-1]):
        assert len(check(FileTaskSettings(path=own, against=(other,), evaluation_share=0)).overlap) == 1


# Rows that are marked to be left out, and rows that leave out a column that others have.


def test_duplicates_can_be_kept_and_marks_be_ignored(tmp_path: Path) -> None:
    rows = [{**row, "eval_overlap": "x"} for row in questions(2)]
    found = tasks(write(tmp_path / "a.jsonl", rows * 2), duplicates="keep", marked=[])
    assert len(found) == len({task.id for task in found}) == 4


def test_a_column_of_marks_that_no_row_has_is_reported_with_the_nearest(tmp_path: Path) -> None:
    rows = [*questions(3), {"question": "seen before", "answer": "1", "contaminated": True}]
    path, other = write(tmp_path / "a.jsonl", rows), write(tmp_path / "b.jsonl", questions(2))
    assert len(tasks(path, marked="contaminated")) == 3
    with pytest.warns(TaskWarning, match=r"marked: no row .* a column 'contaminate' \(did you mean 'contaminated'\?\)"):
        assert len(tasks(path, marked=["eval_overlap", "contaminate"])) == 4
    for sources in ((other, path), (path, other)):
        about = {"sources": sources, "marked": ("contaminated",), "evaluation_share": 0}
        mixed = FileTaskSettings.model_validate(about)
        assert [source.dropped["marked to be left out"] for source in load(mixed).sources].count(1) == 1


def test_choices_that_an_evaluation_leaves_out_are_reported(tmp_path: Path) -> None:
    held = write(tmp_path / "e.jsonl", [ROWS["choices"], {"question": "Which?", "answer": 1}])
    with pytest.raises(DataError, match="line 2: lacks column choices or options"):
        read(write(tmp_path / "a.jsonl", [ROWS["plain"]]), against=held)


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
