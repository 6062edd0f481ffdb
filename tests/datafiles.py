"""Files of tasks for tests."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retcon.tasks.data.load import ReadSource, load
from retcon.tasks.data.settings import FileTaskSettings
from retcon.tasks.types import Task

TESTS = [{"input": "1 2", "output": "3", "testtype": "stdin"}]
LONG = "a farmer counts the eggs of every hen in the long red barn each morning before breakfast and writes them down"
"""A question of more than 13 words."""
ROWS: dict[str, dict[str, Any]] = {
    "verl": {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6 times 7?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"split": "train", "index": 3, "answer": "6*7 is 42"},
    },
    "trl": {"prompt": [{"role": "user", "content": "What is 6 times 7?"}], "solution": "42"},
    "gsm8k": {"question": "What is 6 times 7?", "answer": "6*7=<<6*7=42>>42\n#### 42"},
    "math": {"problem": "What is 6 times 7?", "solution": r"It is $\boxed{42}$.", "level": "Level 1"},
    "aime": {"id": "x-1", "problem": "What is 6 times 7?", "expected_answer": "42"},
    "plain": {"question": "What is 6 times 7?", "answer": 42},
    "gpqa": {
        "Question": "What is 6 times 7?", "Correct Answer": "42\n", "Incorrect Answer 1": "41",
        "Incorrect Answer 2": "2", "Incorrect Answer 3": "43", "Record ID": "rec1", "Subdomain": "Arithmetic",
    },
    "choices": {"question": "What is 6 times 7?", "choices": ["41", "42", "43"], "answer": 1},
    "humaneval": {
        "task_id": "HumanEval/0", "prompt": "def two():\n", "entry_point": "two", "canonical_solution": "    return 2",
        "test": "def check(candidate):\n    assert candidate() == 2\n",
    },
    "mbpp": {
        "task_id": 1, "text": "Write a function two.", "code": "def two(): return 2",
        "test_list": ["assert two() == 2"], "test_setup_code": "", "challenge_test_list": [],
    },
    "apps": {
        "problem_id": 0, "question": "Add two numbers.", "solutions": "[]", "starter_code": "",
        "input_output": json.dumps({"inputs": ["1 2"], "outputs": ["3"]}),
    },
    "livecodebench": {
        "question_title": "Sum", "question_content": "Add two numbers.", "question_id": "abc_a", "platform": "atcoder",
        "starter_code": "", "public_test_cases": json.dumps(TESTS), "metadata": "{}",
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps(TESTS)))).decode(),
    },
}  # fmt: skip
"""A row of each convention."""


def write(path: Path, rows: Sequence[Any]) -> str:
    """Rows as JSON Lines, gzipped where the name says so."""
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def questions(count: int) -> list[dict[str, Any]]:
    """So many different rows."""
    return [{"question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(count)]


def read(path: str, **settings: Any) -> ReadSource:
    """What became of a file's rows, none held out unless the settings say so."""
    return load(FileTaskSettings(path=path, **{"evaluation_share": 0, **settings})).sources[0]


def tasks(path: str, **settings: Any) -> list[Task]:
    """The tasks that a file's rows became."""
    return [placed.task for placed in read(path, **settings).train]
