"""`retcon data check`, on files made here and on real data sets."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from datafiles import ROWS, questions, read, write
from retcon.cli.app import app
from retcon.core.errors import RetconError
from retcon.tasks.data.load import unreadable
from retcon.tasks.types import Task

DATA = Path(os.environ.get("RETCON_DATA", Path(__file__).parents[3].parent / "shared" / "data"))
needs_data = pytest.mark.skipif(not (DATA / "eval").is_dir(), reason=f"no real data sets at {DATA} (RETCON_DATA)")
needs_math = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="math-verify, of the extra [grade], is not installed"
)


def checked(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", "check", *words], env={"COLUMNS": "80"})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_columns_are_named_as_the_command_line_does(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"text": "What is 1 plus 1?", "label": "2"}])
    assert "1 graded by math" in checked(file, "--column", "question=text", "--column", "answer=label")
    for words, told in (
        ([], "--column question=… --column answer=…"),
        (["--column", "qestion=text"], r"--column: no field 'qestion'"),
    ):
        refused = CliRunner().invoke(app, ["data", "check", file, *words])
        assert isinstance(refused.exception, RetconError)
        assert told in str(refused.exception)


def test_a_convention_of_the_users_own_is_named_by_its_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("riddles_of_mine.py").write_text(
        "from retcon.tasks.data.conventions import Convention, build_item\n"
        "RIDDLES = Convention('riddles', ('riddle', 'solved'), lambda r: build_item(r, 'riddle', 'solved'), 'exact')\n"
    )
    file = write(tmp_path / "a.jsonl", [{"riddle": "What is 1 plus 1?", "solved": "2"}])
    assert "1 graded by exact" in checked(file, "--format", "riddles_of_mine:RIDDLES")
    refused = CliRunner().invoke(app, ["data", "check", file, "--format", "gsm9k"])
    assert isinstance(refused.exception, RetconError)
    assert "did you mean 'gsm8k'?" in str(refused.exception)


def test_a_field_that_two_columns_are_named_for_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"text": "What is 1 plus 1?", "body": "What is 2 plus 2?", "label": "2"}])
    columns = ["--column", "question=text", "--column", "answer=label", "--column", "question=body"]
    said = " ".join(checked(file, *columns, code=2).replace("│", " ").split())
    assert "--column: 'question' is given twice, as text and as body" in said


def test_it_prints_what_there_is_within_eighty_columns(tmp_path: Path) -> None:
    rows = [*questions(9), {"question": "What is  1 plus 1?", "answer": "5"}, {"question": "none", "answer": None}]
    printed = checked(write(tmp_path / "a.jsonl", rows))
    assert max(map(len, printed.splitlines())) <= 80
    for told in (
        "a.jsonl: plain (question, answer)",
        "line 10 asks what line 2 does, and answers otherwise",
        "9 graded by math",
    ):
        assert told in printed
    lines = [line.split() for line in printed.splitlines()]
    assert ["rows", "11"] in lines
    assert ["without", "an", "answer", "1", "line", "11"] in lines
    assert printed.count("→") == 5


def test_columns_that_are_part_of_the_question_are_told(tmp_path: Path) -> None:
    row = {"instruction": "What is the sum?", "input": "1 and 2", "answer": "3"}
    printed = checked(write(tmp_path / "a.jsonl", [row]))
    assert "asked with 'input' 1 the question is of both columns" in " ".join(printed.split())
    assert "What is the sum? 1 and 2" in printed


def test_a_grader_that_cannot_work_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "a.jsonl", questions(2))
    printed = " ".join(checked(path, "--grader", "no_such_module:grade", code=1).split())
    assert "grader 'no_such_module:grade' cannot be imported" in printed
    assert json.loads(checked(path, "--grader", "no_such_module:grade", "--json", code=1))["unready"]
    (tmp_path / "own.py").write_text("")
    assert "has no 'grade'" in " ".join(checked(path, "--grader", "own:grade", code=1).split())


def test_the_settings_that_a_grader_needs_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", questions(2))
    printed = " ".join(checked(path, "--grader", "judge").split())
    assert "the grader judge needs settings: task.graders = { judge = { url = …, model = … } }" in printed
    assert "needs settings" not in checked(path, "--grader", "exact")


def test_all_of_it_is_there_as_json_too(tmp_path: Path) -> None:
    told = json.loads(checked(write(tmp_path / "a.jsonl", [ROWS["choices"]]), "--json"))
    assert (told["rows"], told["kept"], told["convention"], told["graders"]) == (1, 1, "choices", {"choice": 1})
    assert told["lengths"]["unit"] == "characters"
    assert told["samples"][0]["answer"] == "B"


def test_overlap_and_answers_that_cannot_be_read_end_with_1(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", questions(3))
    printed = checked(path, "--against", write(tmp_path / "b.jsonl", questions(1)), code=1)
    assert "line 1 repeats b.jsonl, line 1 (same)" in printed
    bad = write(tmp_path / "c.jsonl", [{"question": "x", "answer": "blue"}, *questions(1)])
    assert "line 1: 'blue': answer 'blue' is not a letter" in checked(bad, "--grader", "choice", code=1).replace(
        "\n", " "
    )
    beyond = write(tmp_path / "d.jsonl", [{"question": "x", "choices": ["red", "blue"], "answer": "E"}])
    assert "line 1: 'E': it names none of the 2 options, A to B" in checked(beyond, code=1).replace("\n", " ")


def test_words_under_math_are_pointed_out(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="math-verify, of the extra [grade], is not installed")
    path = write(tmp_path / "a.jsonl", [{"text": "Where?", "label": "Paris"}, {"text": "When?", "label": "1789"}])
    printed = checked(path, "--column", "question=text", "--column", "answer=label")
    assert "math takes for products of letters" in printed.replace("\n", " ")
    assert "in words" not in checked(path, "--column", "question=text", "--column", "answer=label", "--grader", "exact")
    row = {"question": "Add.", "solution": "def add(a, b): return a + b", "test": "assert add(1, 2) == 3"}
    assert "is --grader code meant?" in " ".join(checked(write(tmp_path / "b.jsonl", [row])).split())
    row = {"problem": "Add.", "answer": "def add(a, b): return a + b", "tests": [{"input": "1", "output": "2"}]}
    assert "is --grader code meant?" in " ".join(checked(write(tmp_path / "c.jsonl", [row])).split())
    row = {"problem": "Where?", "answer": "Paris", "tests": [], "test": ""}
    assert "is --grader exact meant?" in " ".join(checked(write(tmp_path / "d.jsonl", [row])).split())


def test_commas_that_may_be_decimal_ones_are_pointed_out_under_math(tmp_path: Path) -> None:
    rows = [{"question": str(n), "answer": answer} for n, answer in enumerate(("3,5", "1,234", "0.5", "0,5"))]
    path = write(tmp_path / "a.jsonl", rows)
    printed = checked(path)
    assert "line 1: '3,5' is a list of 3 and 5; as a number write 3.5" in printed
    assert ["ambiguous", "2", "lines", "1,", "4"] in [line.split() for line in printed.splitlines()]
    assert [where for where, *_ in json.loads(checked(path, "--json"))["ambiguous"]] == [
        f"{path}, line 1",
        f"{path}, line 4",
    ]
    assert "ambiguous" not in checked(path, "--grader", "exact")


def test_without_math_verify_the_rest_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = write(tmp_path / "a.jsonl", [{"question": "x", "answer": "1/2"}])
    told = " ".join(checked(path).split())
    assert "no grader can read ? reading answers as mathematics needs Math-Verify" in told


@pytest.mark.torch
def test_lengths_are_in_the_models_tokens(tmp_path: Path) -> None:
    from retcon.models.locating import BASE

    path = write(tmp_path / "a.jsonl", questions(3))
    told = json.loads(checked(path, "--json", "--model", str(BASE)))
    assert told["lengths"]["unit"] == "tokens"
    assert 5 < told["lengths"]["longest"] < 40


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("numbers",), "numbers is a task set of its own"),
        (("{}/absent.jsonl",), "does not exist"),
        (("{}/a.jsonl", "--column", "quetion=text"), "no field 'quetion' .did you mean 'question'"),
        (("{}/a.jsonl", "--grader", "exakt"), "no grader 'exakt'"),
        (("{}/a.jsonl", "--model", "{}/none"), "there is no model"),
    ],
)
def test_what_cannot_be_checked_is_said(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", questions(1))
    result = CliRunner().invoke(app, ["data", "check", *(word.format(tmp_path) for word in words)])
    assert isinstance(result.exception, RetconError)
    with pytest.raises(RetconError, match=said):
        raise result.exception


@needs_math
def test_what_math_cannot_read_is_found_among_what_it_can() -> None:
    answers = ["5", "1/2", "$", "x^2", r"9^{9^{9^9}}", "2" * 5000]
    tasks = [Task(str(n), "q", answer, meta={"grader": "math"}) for n, answer in enumerate(answers)]
    assert {task.answer[:5]: why for task, why in unreadable(tasks)} == {
        "$": "Math-Verify finds no mathematics in it",
        "22222": "it has 5,000 characters, 4,000 at most",
    }


@needs_data
@pytest.mark.parametrize(
    ("file", "convention", "rows", "dropped"),
    [
        ("eval/aime24.jsonl", "aime", 30, {}),
        ("eval/aime25.jsonl", "aime", 30, {}),
        ("eval/hmmt_24_25.jsonl", "aime", 196, {}),
        ("eval/math500.jsonl", "math", 500, {}),
        ("eval/gsm8k_test.jsonl", "gsm8k", 1319, {}),
        ("eval/HumanEval.jsonl.gz", "humaneval", 164, {}),
        ("eval/mbpp.json", "mbpp", 974, {}),
        ("rl/gsm8k_train.jsonl.gz", "gsm8k", 7473, {}),
        ("rl/math_l3to5.jsonl.gz", "math", 8523,
         {"marked to be left out": 7, "the same as one before": 5, "without an answer": 2}),
    ],
)  # fmt: skip
def test_real_data_sets_are_read_whole(file: str, convention: str, rows: int, dropped: dict[str, int]) -> None:
    source = read(str(DATA / file))
    assert (source.convention, source.rows, dict(source.dropped)) == (convention, rows, dropped)
    answers = [placed.task.answer for placed in source.train if placed.task.meta["grader"] == "math"]
    assert all(answers)
    if convention == "gsm8k" or file.startswith("eval/aime"):
        assert all(answer.replace(",", "").lstrip("-").isdigit() for answer in answers)
