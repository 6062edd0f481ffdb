"""[task]: the tasks of a file, and their grading; how hard the number problems are, and how weak their teacher."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import types
import warnings
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from datafiles import ROWS
from keys.acting import Lab, acts
from retcon.build import build_tasks, open_graded
from retcon.config.schema import Recipe
from retcon.core.errors import RetconError, TaskWarning
from retcon.core.types import Segment, Trajectory, Turn
from retcon.tasks.data.tasks import DataTasks
from retcon.tasks.grading.registry import options_of, settings_for
from retcon.tasks.kinds.documents import DocumentTasks
from retcon.tasks.kinds.numbers import PROGRAMS, NumberTasks, problems
from retcon.tasks.registry import grader_options
from retcon.tasks.types import Task

BARE = ('task.kind="file"',)
FILE = (*BARE, 'task.path="LAB/rows.jsonl"', "task.evaluation_share=0")
TWO = [{"question": "one and one?", "answer": "2"}, {"question": "two and two?", "answer": "4"}]
LONG = "how many words of more than three letters does this question have that you are reading just now, my friend?"


def write(lab: Lab, *rows: dict[str, Any], name: str = "rows.jsonl") -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (lab.folder / name).write_text(text, encoding="utf-8")


def built(recipe: Recipe, lab: Lab) -> DataTasks:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TaskWarning)  # of what is left out, which the cases look at
        tasks = build_tasks(recipe, lab.base)
    assert isinstance(tasks, DataTasks)
    return tasks


def trained(recipe: Recipe, lab: Lab) -> list[Task]:
    return sorted(built(recipe, lab).train(0), key=lambda task: task.question)


def questions(recipe: Recipe, lab: Lab) -> list[str]:
    return [task.question for task in trained(recipe, lab)]


def held_out(recipe: Recipe, lab: Lab) -> list[str]:
    return sorted(task.question for task in built(recipe, lab).evaluation(9, 0))


@acts("task.path", ("LAB/a.jsonl", ["from a"]), ("LAB/b.jsonl", ["from b"]), given=FILE)
def whose_questions_are_trained_on(recipe: Recipe, lab: Lab) -> list[str]:
    for name in "ab":
        write(lab, {"question": f"from {name}", "answer": "1"}, name=f"{name}.jsonl")
    return questions(recipe, lab)


@acts(
    "task.sources", (["LAB/a.jsonl"], 1), (["LAB/a.jsonl", "LAB/b.jsonl"], 2), given=(*BARE, "task.evaluation_share=0")
)
def questions_of_several_sources(recipe: Recipe, lab: Lab) -> int:
    for name in "ab":
        write(lab, {"question": f"from {name}", "answer": "1"}, name=f"{name}.jsonl")
    return len(questions(recipe, lab))


@acts("task.format", ("choices", "B"), ("plain", "four"), given=FILE)
def answer_of_a_row_with_choices(recipe: Recipe, lab: Lab) -> str:
    write(lab, {"question": "two and two?", "choices": ["three", "four"], "answer": "four"})
    return trained(recipe, lab)[0].answer


@acts(
    "task.columns",
    ({"question": "text", "answer": "label"}, "1"),
    ({"question": "text", "answer": "other"}, "2"),
    given=FILE,
)
def answer_of_a_column(recipe: Recipe, lab: Lab) -> str:
    write(lab, {"text": "what?", "label": "1", "other": "2"})
    return trained(recipe, lab)[0].answer


@acts("task.options_seed", (0, "B"), (1, "C"), given=FILE)
def letter_of_the_right_option(recipe: Recipe, lab: Lab) -> str:
    write(lab, ROWS["gpqa"])
    return trained(recipe, lab)[0].answer


@acts("task.prompt", ("", "one and one?"), ("So: {question}", "So: one and one?"), given=FILE)
def how_a_problem_is_asked(recipe: Recipe, lab: Lab) -> str:
    write(lab, TWO[0])
    return trained(recipe, lab)[0].question


@acts("task.benchmark", ("", ["rows/1"]), ("gsm8k", ["gsm8k/1"]), given=FILE)
def what_problems_are_named_after(recipe: Recipe, lab: Lab) -> list[str]:
    write(lab, {"id": "1", **TWO[0]})
    return [task.id for task in trained(recipe, lab)]


@acts("task.grader", ("exact", "exact"), ("math", "math"), given=FILE)
def who_grades(recipe: Recipe, lab: Lab) -> object:
    write(lab, *TWO)
    return trained(recipe, lab)[0].meta["grader"]


@acts("task.rewards", ("signed", -1.0), ("binary", 0.0), given=(*FILE, 'task.grader="exact"'))
def reward_of_a_wrong_answer(recipe: Recipe, lab: Lab) -> float | None:
    write(lab, *TWO)

    async def graded() -> Trajectory:
        async with open_graded(built(recipe, lab)) as tasks:
            task = next(tasks.train(0))
            reply = Turn((Segment("sampled", r"\boxed{7}"),), stop="answer")
            found = tasks.grade(task, Trajectory("t", task.id, (), (reply,), stop="answer"))
            return found if isinstance(found, Trajectory) else await found

    return asyncio.run(graded()).reward


@acts("task.split", ("train", ["one and one?"]), ("test", ["two and two?"]), given=FILE)
def questions_of_a_split(recipe: Recipe, lab: Lab) -> list[str]:
    write(lab, {**TWO[0], "split": "train"}, {**TWO[1], "split": "test"})
    return questions(recipe, lab)


HUB = (*BARE, 'task.path="org/name"', "task.evaluation_share=0")


def asked(recipe: Recipe, lab: Lab) -> tuple[Any, Any]:
    """(subset, revision) that the `datasets` package is asked for: a stand-in that notes them, as there is no hub."""
    seen: list[tuple[Any, Any]] = []

    def load_dataset(name: str, subset: str | None, *, revision: str | None) -> dict[str, list[dict[str, Any]]]:
        seen.append((subset, revision))
        return {"train": TWO}

    package = types.ModuleType("datasets")
    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "datasets", package)
        assert len(questions(recipe, lab)) == 2
    return seen[0]


@acts("task.subset", ("", None), ("main", "main"), given=HUB)
def subset_that_the_hub_is_asked_for(recipe: Recipe, lab: Lab) -> object:
    return asked(recipe, lab)[0]


@acts("task.revision", ("", None), ("v2", "v2"), given=HUB)
def revision_that_the_hub_is_asked_for(recipe: Recipe, lab: Lab) -> object:
    return asked(recipe, lab)[1]


@acts("task.graders", ({}, 30.0), ({"function": {"seconds": 2.0}}, 2.0), given=FILE)
def seconds_of_a_function_that_grades(recipe: Recipe, lab: Lab) -> object:
    write(lab, *TWO)
    options = grader_options(built(recipe, lab))
    return settings_for("my_package:my_grade", options_of("my_package:my_grade", options)).seconds


@acts("task.name", ("", "rows"), ("mine", "mine"), given=FILE)
def what_the_task_set_is_called(recipe: Recipe, lab: Lab) -> str:
    write(lab, *TWO)
    return built(recipe, lab).name


@acts("task.system", ("", None), ("Be brief.", "Be brief."), given=FILE)
def system_prompt(recipe: Recipe, lab: Lab) -> str | None:
    write(lab, *TWO)
    tasks = built(recipe, lab)
    return next(tasks.train(0)).system or tasks.system


@acts("task.evaluation_path", ("", []), ("LAB/held.jsonl", ["held out?"]), given=FILE)
def problems_of_a_file_to_evaluate_on(recipe: Recipe, lab: Lab) -> list[str]:
    write(lab, *TWO)
    write(lab, {"question": "held out?", "answer": "1"}, name="held.jsonl")
    return held_out(recipe, lab)


@acts("task.evaluation_split", ("test", ["two and two?"]), ("dev", ["held?"]), given=(*FILE, 'task.split="train"'))
def problems_of_a_split_to_evaluate_on(recipe: Recipe, lab: Lab) -> list[str]:
    rows = (TWO[0], "train"), (TWO[1], "test"), ({"question": "held?", "answer": "1"}, "dev")
    write(lab, *({**row, "split": split} for row, split in rows))
    return held_out(recipe, lab)


@acts("task.evaluation_share", (0.0, 0), (0.5, True), given=FILE)
def share_that_is_held_out(recipe: Recipe, lab: Lab) -> int | bool:
    write(lab, *({"question": f"what is {n} squared, of all things?", "answer": str(n * n)} for n in range(100)))
    share = len(built(recipe, lab).evaluation(100, 0)) / 100
    return 0 if share == 0 else 0.3 < share < 0.7


@acts("task.max_prompt_tokens", (0, 2), (40, 1), given=FILE)
def prompts_that_are_short_enough(recipe: Recipe, lab: Lab) -> int:
    write(lab, {"question": "1?", "answer": "1"}, {"question": LONG, "answer": "2"})
    return len(questions(recipe, lab))


@acts("task.duplicates", ("drop", 1), ("keep", 2), given=FILE)
def rows_with_one_question(recipe: Recipe, lab: Lab) -> int:
    write(lab, TWO[0], TWO[0])
    return len(questions(recipe, lab))


@acts("task.marked", ([], 2), (["seen_before"], 1), given=FILE)
def rows_that_no_column_marks(recipe: Recipe, lab: Lab) -> int:
    write(lab, TWO[0], {**TWO[1], "seen_before": "aime"})
    return len(questions(recipe, lab))


@acts("task.against", ([], 2), (["LAB/held.jsonl"], 1), given=(*FILE, 'task.overlap="drop"'))
def rows_that_repeat_no_evaluation(recipe: Recipe, lab: Lab) -> int:
    write(lab, *TWO)
    write(lab, TWO[0], name="held.jsonl")
    return len(questions(recipe, lab))


@acts(
    "task.overlap", ("refuse", "refused"), ("drop", 1), ("allow", 2), given=(*FILE, 'task.against=["LAB/held.jsonl"]')
)
def what_becomes_of_rows_that_repeat_an_evaluation(recipe: Recipe, lab: Lab) -> object:
    write(lab, *TWO)
    write(lab, TWO[0], name="held.jsonl")
    try:
        return len(questions(recipe, lab))
    except RetconError:
        return "refused"


SURE = ("task.first_failure=0", "task.retry_failure=0", "task.wrong_method=0")


def written(recipe: Recipe, printed: Sequence[str]) -> set[str]:
    """What kinds of programs the teacher writes for first steps, after these outputs."""
    tasks = build_tasks(recipe)
    assert isinstance(tasks, NumberTasks)
    kinds = set()
    for problem, (_, lesson) in islice(zip(problems(0, "train"), tasks.lessons(0), strict=False), 30):
        step = problem.steps[0]
        code = lesson(printed, random.Random(0))[1]
        programs = PROGRAMS[step.operation.name]
        for kind in ("right", "failing", "wrong"):
            if code in {source.format(*step.args) for source in getattr(programs, kind)}:
                kinds.add(kind)
    return kinds


@acts("task.steps", (2, 2), (3, 3))
def steps_of_the_problems(recipe: Recipe, lab: Lab) -> int:
    (task,) = build_tasks(recipe).evaluation(1, 0)
    return len(task.meta["operations"])


@acts("task.first_failure", (0.0, {"right"}), (1.0, {"failing"}), given=SURE)
def first_tries_of_the_teacher(recipe: Recipe, lab: Lab) -> set[str]:
    return written(recipe, [])


@acts("task.retry_failure", (0.0, {"right"}), (1.0, {"failing"}), given=SURE)
def its_tries_after_an_error(recipe: Recipe, lab: Lab) -> set[str]:
    return written(recipe, ["NameError"])


@acts("task.wrong_method", (0.0, {"right"}), (1.0, {"wrong"}), given=SURE)
def its_programs_that_run(recipe: Recipe, lab: Lab) -> set[str]:
    return written(recipe, [])


DOCUMENTS = ('task.kind="documents"',)


def documents(recipe: Recipe) -> DocumentTasks:
    tasks = build_tasks(recipe)
    assert isinstance(tasks, DocumentTasks)
    return tasks


@acts("task.asks", (["count"], {"count"}), (["needle", "pair"], {"needle", "pair"}), given=DOCUMENTS)
def kinds_of_questions(recipe: Recipe, lab: Lab) -> set[object]:
    return {task.meta["kind"] for task in islice(documents(recipe).train(0), 30)}


@acts("task.length", (400, (4, 4)), (900, (9, 9)), given=DOCUMENTS)
@acts("task.longest", (0, (4, 4)), (1600, (4, 16)), given=(*DOCUMENTS, "task.length=400"))
@acts("task.evaluation_length", (0, (4, 4)), (4000, (4, 4)), given=(*DOCUMENTS, "task.length=400"))
def hundreds_of_characters(recipe: Recipe, lab: Lab) -> tuple[int, int]:
    lengths = [len(str(task.meta["context"])) for task in islice(documents(recipe).train(0), 100)]
    return round(min(lengths) / 100), round(max(lengths) / 100)


@acts("task.evaluation_length", (0, 4), (4000, 40), given=(*DOCUMENTS, "task.length=400"))
def hundreds_of_characters_that_are_held_out(recipe: Recipe, lab: Lab) -> int:
    (task,) = documents(recipe).evaluation(1, 0)
    return round(len(str(task.meta["context"])) / 100)


@acts("task.in_prompt", (0, False), (200, True), given=DOCUMENTS)
def whether_the_prompt_has_lines(recipe: Recipe, lab: Lab) -> bool:
    return "\n" in documents(recipe).evaluation(1, 0)[0].question


@acts("task.wrong_programs", (0.0, {False}), (1.0, {True}), given=DOCUMENTS)
def programs_that_leave_out_lines(recipe: Recipe, lab: Lab) -> set[bool]:
    lessons = islice(documents(recipe).lessons(0), 20)
    return {"len(lines) - " in str(lesson([], random.Random(n))[1]) for n, (_, lesson) in enumerate(lessons)}


@acts("task.wrong_answers", (0.0, {"2"}), (1.0, {"1"}), given=DOCUMENTS)
def answers_about_two_lines(recipe: Recipe, lab: Lab) -> set[str]:
    prompt = "how many lines are about food?\nTom apple 412\nMia bread 108"
    return {documents(recipe).answer_subcall(prompt, random.Random(n)) for n in range(20)}
