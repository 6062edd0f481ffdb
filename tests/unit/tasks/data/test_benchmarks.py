"""Standard benchmarks by name: how their rows are asked, and what is said where they cannot be had."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError, TaskWarning
from retcon.tasks.benchmarks import ALL, BENCHMARKS, fill_prompt
from retcon.tasks.data.fields import DataError
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.graders.oolong import OolongGrader
from retcon.tasks.graders.plain import grade
from retcon.tasks.grading.registry import Reply
from retcon.tasks.types import Task

PUBLISHED: dict[str, dict[str, Any]] = {
    "aime24": {"ID": "2024-I-1", "Problem": "What is 5 + 5?", "Solution": "Add.", "Answer": 10},
    "aime25": {"id": "0", "problem": "What is 5 + 5?", "answer": "10"},
    "hmmt25": {"problem_idx": 1, "problem": "Halve one.", "answer": "\\frac{1}{2}", "problem_type": ["Algebra"]},
    "math500": {"problem": "What is $2+2$?", "solution": "It is $\\boxed{4}$.", "answer": "4", "subject": "Algebra",
                "level": 1, "unique_id": "test/algebra/1.json"},
    "gsm8k": {"question": "Two pens and one?", "answer": "2+1=<<2+1=3>>3\n#### 3"},
    "gpqa": {"Record ID": "rec1", "Question": "Which gas?", "Correct Answer": "neon", "Incorrect Answer 1": "gold",
             "Incorrect Answer 2": "iron", "Incorrect Answer 3": "lead", "High-level domain": "Chemistry",
             "Subdomain": "Chemistry (general)"},
    "humaneval": {"task_id": "HumanEval/0", "prompt": 'def add(a, b):\n    """Add."""\n', "entry_point": "add",
                  "canonical_solution": "    return a + b\n",
                  "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"},
    "mbpp": {"source_file": "x", "task_id": 11, "prompt": "Write a function to add.", "code": "def add(a, b): ...",
             "test_imports": [], "test_list": ["assert add(1, 2) == 3"]},
    "bigcodebench": {"task_id": "BigCodeBench/0", "complete_prompt": "def task_func():\n    ...\n", "libs": "[]",
                     "instruct_prompt": "Write it.", "canonical_solution": "    return 1", "entry_point": "task_func",
                     "code_prompt": "def task_func():\n", "doc_struct": "{}",
                     "test": "import unittest\nclass TestCases(unittest.TestCase):\n    def test_one(self):\n"
                             "        self.assertEqual(task_func(), 1)\n"},
    "livecodebench-v6": {"question_title": "A", "question_content": "Print it.", "platform": "atcoder",
                         "question_id": "abc1", "contest_id": "abc", "contest_date": "2025-01-04T00:00:00",
                         "starter_code": "", "difficulty": "easy", "metadata": "{}",
                         "public_test_cases": '[{"input": "1", "output": "1", "testtype": "stdin"}]',
                         "private_test_cases": "[]"},
    "oolong": {"id": 14, "context_len": 131072, "dataset": "trec_coarse",
               "context_window_text": "User: 7 || Who was he?",
               "context_window_text_with_labels": "User: 7 || Who was he? || Label: human being",
               "question": "Which label is the most common?", "task_group": "counting", "task": "MOST_FREQ",
               "answer": "['human being']", "answer_type": "ANSWER_TYPE.LABEL", "input_subset": "False",
               "num_labels": 6, "context_window_id": 8},
}  # fmt: skip
"""A row in each benchmark's published layout, invented."""


def written(folder: Path, row: dict[str, Any]) -> str:
    file = folder / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return str(file)


def read(name: str, path: str, **settings: Any) -> Task:
    with pytest.warns(TaskWarning, match=r"has 1 row, and .* as published [\d]+: its results are not comparable"):
        (task,) = FileTaskSettings(benchmark=name, path=path, evaluation_share=1, **settings).open().evaluation(9, 0)
    return task


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_row_of_the_published_layout_is_read_and_has_its_grader(name: str, tmp_path: Path) -> None:
    task = read(name, written(tmp_path, PUBLISHED[name]))
    graders = {"gpqa": "choice", "livecodebench-v6": "livecodebench", "oolong": "oolong"}
    code = name in ("humaneval", "mbpp", "bigcodebench")
    assert task.meta["grader"] == graders.get(name, "code" if code else "math")
    assert task.id.startswith(f"{name}/")
    assert "{" not in task.question.replace("\\boxed{}", "")


def test_of_oolong_only_the_rows_of_the_paper_are_read_and_the_text_stays_apart(tmp_path: Path) -> None:
    row = PUBLISHED["oolong"]
    others = [{**row, "id": 15, "context_len": 1024}, {**row, "id": 16, "dataset": "spam"}]
    again = {**row, "id": 17, "context_window_text": "User: 8 || What is it?", "context_window_id": 9}
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in (row, *others, again)), encoding="utf-8")
    with pytest.warns(TaskWarning, match="has 2 rows, and oolong as published 50"):
        tasks = FileTaskSettings(benchmark="oolong", path=str(file), evaluation_share=1).open().evaluation(9, 0)
    assert {(task.question, task.meta["context"]) for task in tasks} == {
        (row["question"], one["context_window_text"]) for one in (row, again)
    }
    assert {task.id for task in tasks} == {"oolong/14", "oolong/17"}


def test_a_context_that_stands_apart_needs_the_tool_that_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"context": "a plum", "question": "Which?", "answer": "plum"}) + "\n")
    keys = [f"task.path={file}", "task.kind=file", "task.format=context", "task.grader=exact"]
    recipe = load_recipe(None, keys)
    with pytest.raises(RecipeError, match=r"own\.jsonl is a variable of the tool rlm.*: set rollout\.tools=rlm"):
        recipe.task.check_rollouts(recipe)
    recipe = load_recipe(None, [*keys, "rollout.tools=rlm", "task.evaluation_share=1"])
    recipe.task.check_rollouts(recipe)
    (task,) = recipe.task.build().evaluation(1, 0)
    assert (task.question, task.meta["context"]) == ("Which?", "a plum")


@pytest.mark.parametrize(
    ("answer", "kind", "reply", "worth"),
    [
        ("['entity']", "LABEL", "Label: entity", 1.0),
        ("['entity']", "LABEL", "The most common label of all of them is entity", 1.0),
        ("['entity']", "LABEL", "Label: abbreviation", 0.0),
        ("[47]", "NUMERIC", "Answer: **47**", 1.0),
        ("[47]", "NUMERIC", "Answer: 45", 0.75**2),
        ("[47]", "USER", "User: 45", 0.0),
        ("['more common than']", "COMPARISON", "Answer: entity is more common than human being", 1.0),
        ("['more common than']", "COMPARISON", "Answer: entity is less common than human being", 0.0),
        ("[datetime.date(2023, 6, 19)]", "DATE", "Date: Jun 19, 2023", 1.0),
        ("[datetime.date(2023, 6, 19)]", "DATE", "Date: 2023-06-18", 0.0),
    ],
)
def test_oolong_scores_numbers_that_are_close(answer: str, kind: str, reply: str, worth: float) -> None:
    task = Task("t", "?", answer, meta={"answer_type": f"ANSWER_TYPE.{kind}"})
    verdict = asyncio.run(OolongGrader().grade(task, Reply(reply)))
    assert verdict.score == pytest.approx(worth)
    assert verdict.right == (worth == 1.0)


def test_each_benchmark_has_a_row_here_and_is_pinned_to_a_commit() -> None:
    assert {one.name for one in ALL} == {*PUBLISHED, "livecodebench"}  # whose rows are livecodebench-v6's
    assert all(len(one.revision) == 40 and int(one.revision, 16) for one in ALL)


def test_a_prompt_takes_the_question_and_columns_and_leaves_other_braces() -> None:
    assert fill_prompt("{a} {question} \\boxed{} {b}", "Q", {"a": ["x", "y"]}) == "x\ny Q \\boxed{} {b}"
    with pytest.raises(DataError, match=r"neither \{question\} nor a column of the row: a"):
        fill_prompt("Solve.", "Q", {"a": 1})


def test_what_a_recipe_says_itself_counts_before_the_benchmark(tmp_path: Path) -> None:
    task = read("gsm8k", written(tmp_path, PUBLISHED["gsm8k"]), prompt="Q: {question}", grader="exact")
    assert (task.question, task.meta["grader"]) == ("Q: Two pens and one?", "exact")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("settings", [{"path": "gpqa"}, {"benchmark": "gpqa"}, {"path": "numbers"}])
def test_without_the_hub_it_says_where_to_get_it_and_what_to_type(settings: dict[str, str]) -> None:
    if settings == {"path": "numbers"}:  # evaluated on by its name
        settings = {"path": "numbers", "evaluation_path": "gpqa"}
    with pytest.raises(DataError) as error:
        FileTaskSettings(**settings).open()  # type: ignore[arg-type]
    said = str(error.value)
    assert "benchmark gpqa: Idavidrein/gpqa@90b8e5be" in said
    assert "the hub cannot be reached" in said
    assert "Accept its terms at https://huggingface.co/datasets/Idavidrein/gpqa" in said
    assert said.endswith("and give --benchmark-file gpqa='gpqa/gpqa_diamond.csv'")


def test_a_missing_column_and_an_unknown_name_are_a_sentence_each(tmp_path: Path) -> None:
    row = {name: value for name, value in PUBLISHED["bigcodebench"].items() if name != "complete_prompt"}
    with pytest.raises(DataError, match=r"rows.jsonl, line 1: no column 'complete_prompt'.*there are: task_id"):
        FileTaskSettings(benchmark="bigcodebench", path=written(tmp_path, row), evaluation_share=1).open()
    with pytest.raises(ValidationError, match=r"no benchmark 'aime2' \(did you mean 'aime2[45]'\?\)"):
        FileTaskSettings(benchmark="aime2")
    with pytest.raises(DataError, match=r"no tasks 'gsm9k' \(did you mean 'gsm8k'\?\)"):
        FileTaskSettings(path="gsm9k").open()


DATA = Path(__file__).parents[5] / "shared/data/eval"
FILES = {"aime24": "aime24.jsonl", "aime25": "aime25.jsonl", "math500": "math500.jsonl", "gsm8k": "gsm8k_test.jsonl",
         "humaneval": "HumanEval.jsonl.gz"}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_whole_benchmark_has_as_many_problems_as_published(name: str) -> None:
    if not DATA.is_dir():
        pytest.skip(f"no data at {DATA}")
    path = str(DATA / FILES[name])
    tasks = FileTaskSettings(benchmark=name, path=path, evaluation_share=1, duplicates="keep").open()
    assert len(tasks.evaluation(9999, 0)) == BENCHMARKS.find(name).size


THEIRS = {"aime24": "aime2024", "aime25": "aime2025", "gsm8k": "gsm8k", "gpqa": "gpqa", "humaneval": "humaneval",
          "mbpp": "mbpp", "bigcodebench": "bigcodebench"}  # fmt: skip


@pytest.mark.skipif(find_spec("inspect_evals") is None, reason="inspect-evals is not installed")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", THEIRS)
def test_hub_ids_revisions_and_answers_are_those_of_inspect_evals(name: str, tmp_path: Path) -> None:
    """Run it where inspect-evals 0.28.0 is: see docs/data/evaluation.md."""
    from importlib import import_module

    module = import_module(f"inspect_evals.{THEIRS[name]}.{THEIRS[name]}")
    one = BENCHMARKS.find(name)
    if name != "gpqa":  # theirs comes from a URL
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        assert f'"{one.hub}"' in source
        assert f'"{one.revision}"' in source
    make = module.get_record_to_sample() if name == "bigcodebench" else module.record_to_sample
    sample = (make() if name == "humaneval" else make)(PUBLISHED[name])
    task = read(name, written(tmp_path, PUBLISHED[name]))
    template = {"aime24": "USER_PROMPT_TEMPLATE", "aime25": "USER_PROMPT_TEMPLATE", "gsm8k": "MATH_PROMPT_TEMPLATE"}
    if name in template:
        where = module if name == "gsm8k" else import_module("inspect_evals.utils.aime_common")
        assert task.question == getattr(where, template[name]).format(prompt=sample.input)
        assert task.answer == sample.target
    elif name == "humaneval":
        assert task.question.split() == sample.input.split()
    elif name == "bigcodebench":
        assert sample.input.strip() in task.question
    elif name == "mbpp":
        assert sample.input in task.question
        assert all(test in task.question for test in sample.target)
    else:
        lines = task.question.splitlines()
        assert f"{task.answer}. {sample.choices[0]}" in lines
        assert all(any(line.endswith(f". {choice}") for line in lines) for choice in sample.choices)


FORMS = ("so x.\nANSWER: {}", "so\nANSWER: ${}$", "**ANSWER: {}**", "Thus $\\boxed{{{}}}$", "$$\n\\boxed{{{}}}\n$$",
         "ANSWER: {}.", "ANSWER: {}.0", "The answer is {}", "ANSWER: {} units", "ANSWER: 0{}",
         "ANSWER: {}\n\nI am sure.", "ANSWER: \\text{{{}}}")  # fmt: skip


@pytest.mark.skipif(find_spec("inspect_evals") is None, reason="inspect-evals is not installed")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["aime24", "gsm8k"])
def test_answers_are_graded_as_by_inspect_evals_except_where_it_reads_the_last_line_alone(name: str) -> None:
    from inspect_ai.scorer._common import match_str
    from inspect_evals.utils.aime_common import _find_last_substantive_line, remove_boxed_from_ans

    def theirs(reply: str, answer: str) -> bool:
        said = reply if name == "gsm8k" else remove_boxed_from_ans(_find_last_substantive_line(reply))
        return bool(match_str(value=said, target=answer, location="end", numeric=True)[1])

    differ = set()
    for answer in ("18", "73", "204", "999"):
        for form in FORMS:
            for said in (answer, str(int(answer) + 1)):
                reply = form.format(said)
                ours = grade(answer=answer, reply=reply, kind="math")
                assert ours == (said == answer)
                if ours != theirs(reply, answer):
                    differ.add(form)
    boxes = {"Thus $\\boxed{{{}}}$", "$$\n\\boxed{{{}}}\n$$"} if name == "gsm8k" else {"ANSWER: {}\n\nI am sure."}
    assert differ == {"ANSWER: \\text{{{}}}", *boxes}
