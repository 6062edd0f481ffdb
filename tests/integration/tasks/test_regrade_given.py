"""`retcon regrade --tasks`: the tasks of a file that someone names, which may be the data that a run trained on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comparing import QUESTION, answer, trajectory, turn
from datafiles import ROWS, write
from retcon.core.errors import RecordError, TaskWarning
from retcon.store import jsonl
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.grading.grading import GradeSettings
from retcon.tasks.grading.regrade import Regraded, Regrading, read_tasks, regrade
from retcon.tasks.types import Task


def trained_on(path: str) -> list[Task]:
    return list(FileTaskSettings(path=path, evaluation_share=0).open().train(0))


def regraded(folder: Path, tasks: list[Task], file: str | None, reply: str, grader: str = "exact") -> list[Regraded]:
    """Of a rollout of each task with this reply, with the tasks of the file, or as the run in the folder drew them."""
    kept = [
        replace(trajectory(f"{t.id}/0/0", answer(reply), reward=1.0, question=t.question), task=t.id) for t in tasks
    ]
    jsonl.write(folder / "kept.jsonl", kept)
    job = Regrading(folder / "kept.jsonl", folder / "out", GradeSettings(grader), tasks=file and Path(file))
    return regrade(job, lambda *_: None)


@pytest.mark.parametrize("convention", sorted(ROWS))
@pytest.mark.parametrize("id", [None, "q1"])
def test_the_tasks_of_a_file_are_those_that_a_run_trained_on(convention: str, id: str | None, tmp_path: Path) -> None:
    row = {**ROWS[convention], **({"id": id} if id else {})}
    path = write(tmp_path / "mine.jsonl", [row])
    (trained,) = trained_on(path)
    ((ids, given),) = read_tasks(Path(path))
    assert trained.id.removeprefix("mine/") in ids
    assert (given.question, given.answer, given.before) == (trained.question, trained.answer, trained.before)
    assert {"grader": "math", **given.meta} == trained.meta


@pytest.mark.parametrize(
    ("row", "reply"),
    [
        ({"id": "q1", "question": "6 times 7?", "choices": ["41", "43", "42"], "answer": 2}, r"\boxed{C}"),
        ({"problem": "What is 6 times 7?", "answer": "42"}, r"\boxed{42}"),
        ({"instruction": "Multiply.", "input": "6 and 7", "answer": "42"}, r"\boxed{42}"),
        ({"question": "How many?", "context": "There are 42 hens.", "answer": "42"}, r"\boxed{42}"),
    ],
)
def test_a_right_reply_stays_right_by_the_file_that_the_run_trained_on(
    row: dict[str, Any], reply: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "mine.jsonl", [row])
    assert [one.reward for one in regraded(tmp_path, trained_on(path), path, reply)] == [1.0]


def test_data_of_other_kinds_will_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("question,answer\nWhat is 6 times 7?,42\n")
    assert [one.reward for one in regraded(tmp_path, trained_on(str(path)), str(path), r"\boxed{42}")] == [1.0]


def test_lines_that_are_no_rows_to_train_on_are_read_under_any_name(tmp_path: Path) -> None:
    rows = [
        {"id": 17, "answer": 4}, {"id": "mine/18", "answer": "5", "tests": "assert 1"}, {"question": "Why?"},
        {"id": "19", "question": "Add.", "answer": "6", "tests": "assert 1"},
    ]  # fmt: skip
    (tmp_path / "tasks").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    found = [task for _, task in read_tasks(tmp_path / "tasks")]
    assert [(task.id, task.answer) for task in found[:2]] == [("17", "4"), ("mine/18", "5")]
    assert found[1].meta == {"tests": "assert 1"}
    assert (found[2].question, found[2].answer) == ("Why?", "")
    assert (found[3].answer, found[3].meta["tests"]) == ("6", "assert 1"), "for graders of answers, and of programs"


@pytest.mark.parametrize("grader", ["math", "exact", "choice", "code"])
def test_rows_whose_answer_is_elsewhere_make_no_rollout_wrong(grader: str, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"id": "a", "text": "Say yes.", "meta": {"label": "yes"}}])
    trained = Task("mine/a", "Say yes.", "yes")
    with pytest.raises(
        RecordError, match=r"mine\.jsonl: there is nothing to grade task 'mine/a' by \(.*: a row holds its"
    ):
        regraded(tmp_path, [trained], path, r"\boxed{yes}", grader)
    assert not (tmp_path / "out").exists()
    assert [one.reward for one in regraded(tmp_path, [trained], path, "yes", "test_regrade_given:says_yes")] == [1.0]


@pytest.mark.parametrize("given", [True, False])
def test_problems_that_the_rollouts_were_not_asked_are_told(given: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"id": n, "question": f"What is {n} + 1?", "answer": n + 1} for n in (1, 2)])
    tasks = trained_on(path)
    rows = [
        {"id": 1, "question": "What is 1 times 7?", "answer": 7},
        {"id": 2, "question": "What  is 2 + 1", "answer": 3},
    ]
    write(tmp_path / "mine.jsonl", rows)
    if not given:
        about = {"run": {"seed": 0}, "task": {"kind": "file", "path": path, "evaluation_share": 0}}
        (tmp_path / "run.json").write_text(json.dumps({"recipe": about}))
    with pytest.warns(TaskWarning) as told:
        done = regraded(tmp_path, tasks, path if given else None, r"\boxed{7}")
    assert [one.reward for one in sorted(done, key=lambda one: one.id)] == [1.0, -1.0], "a row may have been corrected"
    assert [str(one.message) for one in told] == [
        f"{path if given else 'the data of the run'}: 1 of 2 tasks are not what their rollouts were asked: mine/1/0/0 "
        "was not asked 'What is 1 times 7?'; if these are other problems under the same ids, name the data of the run "
        "with --tasks"
    ]


def test_rows_without_a_question_are_taken_by_their_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"id": 1, "question": "Why?", "answer": "4"}])
    tasks = trained_on(path)
    write(tmp_path / "mine.jsonl", [{"id": 1, "answer": "7"}])
    assert [one.reward for one in regraded(tmp_path, tasks, path, r"\boxed{7}")] == [1.0]


RETURNED = [
    (replace(turn("final_answer('42')", ""), observations=()), "42", 1.0),  # text, and the model's own is a call
    (answer("It is 42."), "It is 41.", -1.0),
    (answer("no number at all"), 0.5, 0.5),
    (answer(r"\boxed{42}"), 0.0, 0.0),
    (answer(r"\boxed{42}"), None, 1.0),
]


def harnessed(folder: Path, *, by: str | None = None, lost: bool = False) -> list[float | None]:
    """The rewards of rollouts that harnesses returned something of. lost: in grading, those that have a text."""
    kept = [
        replace(
            trajectory(f"mine/{n}/0/0", last, reward=before, question=QUESTION), task=f"mine/{n}", returned=said,
            **({"reward": None, "stop": "infrastructure"} if lost and isinstance(said, str) else {}),
        ) for n, (last, said, before) in enumerate(RETURNED)
    ]  # fmt: skip
    jsonl.write(folder / "kept.jsonl", kept)
    path = write(folder / "mine.jsonl", [{"id": n, "question": QUESTION, "answer": "42"} for n in range(len(kept))])
    job = Regrading(folder / "kept.jsonl", folder / "out", GradeSettings(by or "math"), by=by, tasks=Path(path))
    done = regrade(job, lambda *_: None)
    new = list(jsonl.read(folder / "out/kept.jsonl"))
    assert [(t.turns, t.returned) for t in new] == [(t.turns, t.returned) for t in kept]
    assert [t.reward for t in new] == [one.reward for one in done]
    assert {t.stop for t in new} == {"answer"}
    return [one.reward for one in done]


def test_what_a_harness_returned_is_graded_again_and_its_own_reward_stays(tmp_path: Path) -> None:
    assert harnessed(tmp_path) == [1.0, -1.0, 0.5, 0.0, 1.0]


def test_what_a_harness_returned_is_graded_where_no_grader_could_tell(tmp_path: Path) -> None:
    assert harnessed(tmp_path, lost=True) == [1.0, -1.0, 0.5, 0.0, 1.0]


def test_a_grader_that_is_named_takes_the_place_of_a_harness_s_own_reward(tmp_path: Path) -> None:
    assert harnessed(tmp_path, by="math") == [1.0, -1.0, -1.0, 1.0, 1.0]


@pytest.mark.parametrize("harness", ["my_agent:solve", ""])
def test_a_run_with_a_harness_none_of_whose_rollouts_says_what_it_returned_is_told(
    harness: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = write(tmp_path / "mine.jsonl", [{"id": 1, "question": "What is 6 times 7?", "answer": 42}])
    (tmp_path / "run.json").write_text(json.dumps({"recipe": {"rollout": {"harness": harness}}}))
    regraded(tmp_path, trained_on(path), path, r"\boxed{42}")
    told = [str(one.message) for one in recwarn if one.category is TaskWarning]
    assert len(told) == bool(harness)
    assert all(f"rollout.harness = '{harness}'" in one for one in told)


def says_yes(reply: str) -> bool:
    """A grader that needs no answer."""
    return reply == "yes"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[1]", "line 1: a task is an object with 'id', or 'question', and 'answer', or a row"),
        ('{"id": "1", "answer": [1, 2]}', "line 1: 'answer' is not text"),
        ('{"id": "1"', "line 1: not JSON"),
        ('{"problem": "x", "choices": 3, "answer": 1}', "line 1: column 'choices' is not a list of choices"),
    ],
)
def test_what_is_no_task_is_refused_by_its_line(line: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "tasks").write_text(line + "\n")
    with pytest.raises(RecordError, match=told):
        list(read_tasks(tmp_path / "tasks"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(RecordError, match="cannot be read"):
            list(read_tasks(path))
