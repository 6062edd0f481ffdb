"""Rows of other people's data sets become tasks, whatever their columns are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datafiles import ROWS, read, tasks, write
from retcon.chat.chat import Chat
from retcon.chat.tokenizer import ByteTokenizer
from retcon.tasks.data.check import check
from retcon.tasks.data.conventions import conventions
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.load import unreadable
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.graders.text import answer_letter as letter_of

CODE = ("humaneval", "mbpp", "apps", "livecodebench")


def test_there_is_a_row_of_every_convention() -> None:
    assert {one.name for one in conventions()} == {*ROWS, "context"}, "which is taken by name alone"


@pytest.mark.parametrize("name", ROWS)
def test_each_is_recognised_by_itself(name: str, tmp_path: Path) -> None:
    source = read(write(tmp_path / "a.jsonl", [ROWS[name]]))
    assert source.convention == name
    task = source.train[0].task
    if name in CODE:
        assert (task.answer, task.meta["grader"]) == ("", "code")
    elif name == "gpqa":
        assert (task.answer, task.meta["grader"], task.id) == ("B", "choice", "a/rec1")
        assert task.question == "What is 6 times 7?\n\nA. 41\nB. 42\nC. 43\nD. 2"
    elif name == "choices":
        assert (task.answer, task.meta["grader"]) == ("B", "choice")
        assert task.question == "What is 6 times 7?\n\nA. 41\nB. 42\nC. 43"
    else:
        assert (task.question, task.answer, task.meta["grader"]) == ("What is 6 times 7?", "42", "math")


def test_verl_brings_system_prompt_source_and_extra_info(tmp_path: Path) -> None:
    task = tasks(write(tmp_path / "a.jsonl", [ROWS["verl"]]))[0]
    assert (task.system, task.id) == ("Be brief.", "a/3")
    assert (task.meta["source"], task.meta["split"], task.meta["ability"]) == ("openai/gsm8k", "train", "math")


@pytest.mark.parametrize("truth", [{"inputs": ["1"], "outputs": ["1"]}, '{"inputs": ["1"], "outputs": ["1"]}'])
def test_verls_tests_are_graded_as_code(truth: Any, tmp_path: Path) -> None:
    row = {**ROWS["verl"], "data_source": "taco", "reward_model": {"ground_truth": truth}}
    task = tasks(write(tmp_path / "a.jsonl", [row]))[0]
    assert (task.answer, task.meta["grader"], task.meta["input_output"]) == ("", "code", truth)


@pytest.mark.parametrize(
    ("options", "answer", "letter"),
    [
        ({"label": ["1", "2"], "text": ["red", "blue"]}, "2", "B"),
        ({"label": ["P", "Q"], "text": ["red", "blue"]}, "Q", "B"),
        ({"A": "red", "B": "blue"}, "B", "B"),
        (["red", "blue"], "blue", "B"),
        (["red", "blue"], "1", "B"),
    ],
)
def test_choices_are_shown_and_answered_by_letter(options: Any, answer: str, letter: str, tmp_path: Path) -> None:
    task = tasks(write(tmp_path / "a.jsonl", [{"question": "Which?", "options": options, "answer": answer}]))[0]
    assert task.answer == letter
    assert task.question.splitlines()[2:] == ["A. red", "B. blue"]
    assert unreadable([task]) == []


def test_gpqas_options_are_shuffled_by_seed_and_question_and_the_letter_follows(tmp_path: Path) -> None:
    rows = [{**ROWS["gpqa"], "Question": f"What is {n} plus 41, less {n - 1}?", "Record ID": f"{n}"} for n in range(40)]
    file, found = write(tmp_path / "a.jsonl", rows), {}
    for seed in (0, 0, 1):
        read = FileTaskSettings(path=str(file), options_seed=seed, evaluation_share=0).open()
        made = sorted(read.train(0), key=lambda task: task.id)
        for task in made:
            shown = dict(line.split(". ") for line in task.question.splitlines()[2:])
            assert (shown[task.answer], sorted(shown.values())) == ("42", ["2", "41", "42", "43"])
        letters = [task.answer for task in made]
        assert found.setdefault(seed, letters) == letters, "the order is a function of the seed"
        assert all(letters.count(letter) > 3 for letter in "ABCD")
    assert found[0] != found[1]


def test_a_row_of_gpqa_without_an_option_is_refused_by_its_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: column 'Incorrect Answer 2' is empty \(read as gpqa\)"):
        tasks(write(tmp_path / "a.jsonl", [{**ROWS["gpqa"], "Incorrect Answer 2": ""}]))


@pytest.mark.parametrize(
    ("options", "answer", "letter"),
    [
        (["1", "2", "3", "4"], "2", "B"), (["10", "2", "4", "8"], "10", "A"), (["0", "2", "4", "8"], "2", "B"),
        (["0", "2", "4", "8"], 2, "C"), (["0", "1", "2"], "1", "B"), (["red", "blue"], "(B)", "B"),
        (["1", "2"], "(B) 2", "B"), (["1", "2"], "B. 2", "B"), (["1", "2"], r"\textbf{(B)}", "B"),
        ({"label": ["1", "2", "3"], "text": ["2", "3", "1"]}, "2", "B"),
    ],
)  # fmt: skip
def test_an_answer_that_is_an_options_text_and_anothers_index_is_its_text_where_it_is_a_string(
    options: Any, answer: Any, letter: str, tmp_path: Path
) -> None:
    row = {"question": "How many?", "choices": options, "answer": answer}
    (placed,) = read(write(tmp_path / "a.jsonl", [row])).train
    assert (letter_of(placed.task.answer), placed.unread) == (letter, "")


def test_a_number_among_numbers_that_counts_another_one_is_refused(tmp_path: Path) -> None:
    row = {"question": "How many?", "choices": [1, 2, 3], "answer": 2}
    with pytest.raises(DataError, match=r"line 1: column 'answer' is 2, one option and the index of another"):
        read(write(tmp_path / "a.jsonl", [row]))


def test_a_files_answers_name_options_in_one_way(tmp_path: Path) -> None:
    rows = [{"question": q, "choices": c, "answer": a} for q, c, a in (
        ("x?", ["red", "blue"], "B"), ("y?", ["red", "blue"], "1"), ("z?", ["1", "2", "3"], "2"))]  # fmt: skip
    path = write(tmp_path / "a.jsonl", rows)
    told = [placed.unread for placed in read(path).train]
    assert told == ["", "", f"it is an option's text, where {path}, line 2 has an option's index: write letters, "
                            "A, B, …"]  # fmt: skip
    assert [placed.unread for placed in read(write(tmp_path / "b.jsonl", rows[2:])).train] == [""]
    with pytest.raises(DataError, match=rf"no grader can read:\n  {path}, line 3: '2': it is an option's text, where"):
        FileTaskSettings(path=path, evaluation_share=0).open()
    ((where, answer, _),) = check(FileTaskSettings(path=path, evaluation_share=0)).unreadable
    assert (where, answer) == (f"{path}, line 3", "2"), "as the file has it, and not the letter that is made of it"


@pytest.mark.parametrize(("answer", "grader"), [("E", ""), (5, ""), ("green", ""), ("B", "choice"), (5, "choice")])
def test_an_answer_that_its_grader_cannot_read_is_refused_before_work_starts(
    answer: Any, grader: str, tmp_path: Path
) -> None:
    rows = [{"question": "x?", "answer": "B"}, {"question": "Which?", "answer": answer}]
    about = {"grader": grader} if grader else {"choices": ["red", "blue"]}
    rows = [{**row, **about} for row in rows]
    settings = FileTaskSettings(path=write(tmp_path / "a.jsonl", rows), evaluation_share=0)
    if answer == "B":
        assert len(list(settings.open().train(0))) == 2
        return
    with pytest.raises(DataError, match=rf"1 answer that no grader can read:\n  .*a\.jsonl, line 2: '{answer}': "):
        settings.open()


def test_columns_are_mapped_and_the_convention_of_the_values_is_still_seen(tmp_path: Path) -> None:
    row = {"text": "What is 6 times 7?", "more": {"label": "so\n#### 42"}, "how": "exact", "question": "not this one"}
    source = read(
        write(tmp_path / "a.jsonl", [row]), columns={"question": "text", "answer": "more.label", "grader": "how"}
    )
    assert source.convention == "gsm8k"
    task = source.train[0].task
    assert (task.question, task.answer, task.meta["grader"]) == ("What is 6 times 7?", "42", "exact")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "x", "anser": "1"}, r"line 1: no known convention: the row has columns question, anser; the "
                                          r"nearest is \w+, of which it lacks answer.*\(did you mean 'anser'\?\)"),
        ({"prompt": "x", "test": "t", "entry": "f"}, r"nearest is humaneval, of which it lacks entry_point \(did you "
                                                     r"mean 'entry'\?\)"),
        ({"question": "x", "test": "t"}, r"lacks test_list or tests \(did you mean 'test'\?\); tests are known by"),
        ({"question": "x", "target": "1"}, r"columns question, target; the nearest is plain, of which it lacks answer"),
        ({"question": "x", "test_lists": []}, r"lacks test_list or tests \(did you mean 'test_lists'\?\)"),
        ({}, "line 1: no known convention: the row has no columns"),
        ({"question": "x"}, r"nearest is plain, of which it lacks answer or [\w ]+ solution\. Say which columns"),
    ],
)  # fmt: skip
def test_what_is_not_recognised_names_line_columns_and_nearest(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        read(write(tmp_path / "a.jsonl", [row]))


def test_names_that_do_not_exist_bring_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [ROWS["plain"]])
    with pytest.raises(DataError, match=r"no convention 'gsmk8'.*'gsm8k'.*auto, .*verl"):
        read(path, format="gsmk8")
    with pytest.raises(
        DataError,
        match=r"no grader 'maths' \(did you mean 'math'\?\); there are: choice, code, ",
    ):
        read(path, grader="maths")
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: no grader 'exakt' \(did you mean 'exact'\?\)"):
        read(write(tmp_path / "a.jsonl", [{**ROWS["plain"], "grader": "exakt"}]))
    with pytest.raises(DataError, match=r"line 1: no column 'quetion' \(did you mean 'question'\?\)"):
        read(path, columns={"question": "quetion"})
    inner = write(tmp_path / "b.jsonl", [{"body": {"text": "1 + 1?"}, "answer": "2"}])
    with pytest.raises(DataError, match=r"no column 'body.txt' \(did you mean 'body.text'\?\); there are: body.text"):
        read(inner, columns={"question": "body.txt"})
    with pytest.raises(ValueError, match=r"no field 'questoin' \(did you mean 'question'\?\)"):
        read(path, columns={"questoin": "text"})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "x", "answer": {"a": 1}}, "column 'answer' is an object of 1, where text or a number belongs"),
        ({"question": "x", "answer": ["1", "2"]}, "column 'answer' is a list of 2"),
        ({"question": {"a": 1}, "answer": "1"}, "column 'question' is an object"),
        ({"question": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "answer": "1"},
         "does not end with a message of the user"),
        ({"question": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "answer": "1"},
         "has a message of the role 'user' as its 2nd: .* user and assistant take turns"),
        ({"question": [{"role": "system", "content": "a"}, {"role": "tool", "content": "b"}], "answer": "1"},
         "has a message of the role 'tool' as its 2nd"),
        ({"question": [{"role": "user", "content": [{"type": "image"}]}], "answer": "1"}, "images and the like"),
        ({"question": "x", "answer": "1" * 10_000_000}, "its answer has 10,000,000 characters, 20,000 at most"),
    ],
)  # fmt: skip
def test_mixed_types_name_line_and_column(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2: .*{said}"):
        read(write(tmp_path / "a.jsonl", [ROWS["plain"], row]))


def test_worked_examples_come_before_the_question(tmp_path: Path) -> None:
    shots = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "\\boxed{2}"}]
    said = [{"role": "system", "content": "Be brief."}, *shots, {"role": "user", "content": "1+2?"}]
    rows = [
        {"prompt": said, "reward_model": {"ground_truth": "3"}, "data_source": "a"},
        {"prompt": [{"role": "user", "content": "1+3?"}], "reward_model": {"ground_truth": "4"}, "data_source": "a"},
    ]
    shown, plain = tasks(write(tmp_path / "a.jsonl", rows))
    assert (shown.system, shown.question) == ("Be brief.", "1+2?")
    assert shown.before == (("user", "1+1?"), ("assistant", "\\boxed{2}"))
    assert plain.before == ()
    prompt = Chat(ByteTokenizer()).prompt(shown.question, shown.system, shown.before)
    text = "".join(segment.text for segment in prompt)
    assert text.index("Be brief.") < text.index("1+1?") < text.index("\\boxed{2}") < text.index("1+2?")
    assert {segment.kind for segment in prompt} == {"prompt"}, "what others wrote is not learnt"


def test_numbers_truths_and_lists_of_one_are_answers(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": a} for n, a in enumerate([42, 0.5, True, ["7"], 0])]
    assert [t.answer for t in tasks(write(tmp_path / "a.jsonl", rows))] == ["42", "0.5", "True", "7", "0"]


ABOUT = {"input": "I loved it", "answer": "1"}


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        ({"instruction": "Good?", **ABOUT}, "Good?\n\nI loved it"),
        ({"instruction": "Good?", **ABOUT, "output": "It is."}, "Good?\n\nI loved it"),
        ({"question": "Good?", **ABOUT}, "Good?\n\nI loved it"),
        ({"question": "Good?", "context": "I loved it\n", "answer": "1"}, "I loved it\n\nGood?"),
        ({"question": "Good?", "passage": "I loved it", "context": None, "answer": "1"}, "I loved it\n\nGood?"),
        ({"question": "Good?", "article": "It is.", "options": ["no", "yes"], "answer": "B"},
         "It is.\n\nGood?\n\nA. no\nB. yes"),
        ({"instruction": "Good?", "input": " ", "answer": "1"}, "Good?"),
        ({"instruction": "Good?", "input": ["a"], "context": {"a": 1}, "answer": "1"}, "Good?"),
        ({"question": "Good?", "context": "Asked: Good?", "answer": "1"}, "Good?"),
        ({"question": "I loved it. Good?", **ABOUT}, "I loved it. Good?"),
        ({"question": "Add.", "input": "1 2", "output": "3", "answer": "3"}, "Add."),
        ({"question": "Add.", "input": "1 2", "answer": "x", "input_output": {"inputs": [""], "outputs": ["3"]},
          "grader": "code"}, "Add."),
        ({"prompt": "Good?", **ABOUT}, "Good?"),
        ({"prompt": [{"role": "user", "content": "Good?"}], "context": "x", "answer": "1"}, "Good?"),
        ({**ROWS["mbpp"], "input": "1", "context": "x"}, None),
        ({**ROWS["humaneval"], "input": "1", "context": "x"}, None),
        ({**ROWS["livecodebench"], "input": "1", "context": "x"}, None),
    ],
)  # fmt: skip
def test_what_a_question_is_about_is_part_of_it(row: dict[str, Any], asked: str | None, tmp_path: Path) -> None:
    plain = {name: value for name, value in row.items() if name not in ("input", "context")}
    expected = asked or tasks(write(tmp_path / "b.jsonl", [plain]))[0].question
    assert tasks(write(tmp_path / "a.jsonl", [row]))[0].question == expected


def test_questions_that_differ_in_what_they_are_about_are_not_the_same(tmp_path: Path) -> None:
    rows = [{"instruction": "Good?", "input": said, "answer": "1"} for said in ("I loved it", "I hated it", "")]
    source = read(write(tmp_path / "a.jsonl", rows))
    assert [len(source.train), dict(source.asked_with)] == [3, {"input": 2}]
