"""Questions about long documents: what they are, who shares none, and how answers about parts are graded."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from retcon.core.types import Parent, Segment, Trajectory, Turn
from retcon.tasks.kinds.documents import KINDS, NONE, QUESTIONS, DocumentTasks, as_answer, solve, write_program
from retcon.tasks.registry import AnswersSubcalls, Taught, check_task_set, with_returned_reply

LINES = "Tom apple 412\nMia horse 108\nAda dog 412\nBen pear 999\nTom bread 108"
TASKS = DocumentTasks(lengths=(600, 600))


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("how many lines are about food?", "3"),
        ("how many lines are about house?", "0"),
        ("what is the number of the line with horse?", "108"),
        ("what is the number of the line with cup?", NONE),
        ("what is the number of the line about people?", NONE),
        ("which of food, people, house and animal are most lines about?", "food"),
        ("which numbers have lines about animal?", "108 412"),
        ("which pairs of numbers have lines about food and lines about animal each?", "108-412"),
    ],
)
def test_a_question_is_answered_from_the_lines_beside_it(question: str, answer: str) -> None:
    assert solve(f"{LINES}\n{question}") == answer
    assert solve(f"{question}\n{LINES}\nand no line\n") == answer


def test_a_text_without_a_question_has_no_answer() -> None:
    assert solve(LINES) is None


def test_training_and_evaluation_share_no_document_whatever_the_seeds() -> None:
    trained = {t.meta["context"] for seed in range(3) for t in islice(TASKS.train(seed), 60)}
    held = {t.meta["context"] for seed in range(3) for t in TASKS.evaluation(20, seed)}
    assert (len(trained), len(held)) == (180, 60)
    assert not trained & held
    assert [t.id for t in TASKS.evaluation(5, 1)] == [t.id for t in TASKS.evaluation(5, 1)]


def test_tasks_are_of_all_kinds_with_the_document_as_context_alone() -> None:
    made = list(islice(TASKS.train(0), 200))
    assert {t.meta["kind"] for t in made} == set(KINDS)
    for task in made:
        assert abs(len(task.meta["context"]) - 600) < 60
        assert solve(f"{task.question}\n{task.meta['context']}") == task.answer
        assert "\n" not in task.question
    needles = [t for t in made if t.meta["kind"] in ("word", "needle")]
    assert all(t.answer.isdecimal() and len(t.answer) == 3 for t in needles), "one line each"
    pairs = [t.answer for t in made if t.meta["kind"] == "pair"]
    assert 1 <= min(len(a.split()) for a in pairs) < max(len(a.split()) for a in pairs) <= 6


def test_a_document_can_stand_in_the_prompt_as_far_as_it_goes() -> None:
    (task,) = DocumentTasks(evaluation_lengths=(600, 600), in_prompt=100).evaluation(1, 0)
    question, *lines = task.question.split("\n")
    assert 80 < len("\n".join(lines)) <= 100
    assert task.meta["context"].startswith("\n".join(lines) + "\n")
    assert solve(f"{question}\n{task.meta['context']}") == task.answer


def answered(text: str, **changes: object) -> Trajectory:
    turn = Turn((Segment("sampled", text),))
    return Trajectory("r", "t", (Segment("prompt", "p"),), (turn,), **changes)


@pytest.mark.parametrize("text", ["412", " answer: 412 ", r"it is \boxed{412}", "412<|im_end|>"])
def test_an_answer_is_read_however_it_is_said(text: str) -> None:
    task = next(t for t in TASKS.train(0) if t.meta["kind"] == "needle")
    given = answered(text.replace("412", task.answer))
    assert TASKS.grade(task, given).reward == 1.0
    assert TASKS.grade(task, answered("413x")).reward == -1.0
    assert TASKS.grade(task, with_returned_reply(answered("", returned=task.answer))).reward == 1.0


def test_pairs_are_graded_in_any_order() -> None:
    assert as_answer("5-7, 1-2") == as_answer("1-2 5-7")


def test_calls_about_parts_are_graded_by_their_own_lines() -> None:
    def child(question: str, answer: str, **changes: object) -> Trajectory:
        prompt = (Segment("prompt", f"<|im_start|>user\n{question}\n{LINES}<|im_end|>\n<|im_start|>assistant\n"),)
        made = answered(answer, answer=answer, parent=Parent("r", 0, "0.0.0"), **changes)
        return Trajectory(made.id, made.task, prompt, made.turns, answer=answer, parent=made.parent, stop=made.stop)

    question = "how many lines are about food?"
    children = (child(question, "3"), child(question, "2"), child("what is new?", "3"))
    task = next(TASKS.train(0))
    assert [c.reward for c in TASKS.grade(task, answered("no", children=children)).children] == [1.0, -1.0, None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_teacher_that_makes_no_mistakes_is_right(kind: str) -> None:
    """Its program, run here with its own answers, comes to the right answer."""
    tasks = DocumentTasks((kind,), (600, 600), rates=type(TASKS.rates)(0.0, 0.0))
    assert isinstance(tasks, Taught)
    assert isinstance(tasks, AnswersSubcalls)
    check_task_set(tasks, "documents")
    rng = random.Random(0)
    for task, lesson in islice(tasks.lessons(0), 8):
        _, code = lesson([], rng)
        answer: dict[str, object] = {}
        names = {
            "context": task.meta["context"], "answer": answer,
            "llm_query_batched": lambda prompts: [tasks.answer_subcall(p, rng) for p in prompts],
        }  # fmt: skip
        exec(code or "", names)
        if kind != "aggregate":  # which is voted on
            assert (str(answer["content"]), answer["ready"]) == (task.answer, True)


def test_a_weak_teacher_leaves_out_parts_and_reads_half_of_them() -> None:
    weak = type(TASKS.rates)(1.0, 1.0)
    _, code = write_program("count", "how many lines are about food?", [], random.Random(0), weak)
    assert "len(lines) - " in (code or "")
    worse = DocumentTasks(rates=weak)
    found = {worse.answer_subcall(f"how many lines are about food?\n{LINES}", random.Random(n)) for n in range(20)}
    assert found <= {"0", "1", "2"}
    assert all(one.pattern.search(one.words.format(*one.of[: one.groups])) for one in QUESTIONS.values())
