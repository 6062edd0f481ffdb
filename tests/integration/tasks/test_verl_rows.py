"""Rows of verl's data sets, as its rollouts under a recipe read them; without verl."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="a model's tokenizer is read by the [train] extra")

from retcon.models.locating import locate
from retcon.plugins.verl.shared import open_shared
from retcon.tasks.types import Task
from unit.test_verl_rules import configured

ROW = {"raw_prompt": [{"role": "user", "content": "6 times 7?"}], "data_source": "theirs",
       "reward_model": {"ground_truth": "42"}, "extra_info": {}}  # fmt: skip


class Tokenizer:
    def save_pretrained(self, folder: str) -> None:
        shutil.copytree(locate("base"), folder, dirs_exist_ok=True)


def read_under(*overrides: str, row: dict[str, Any] = ROW) -> Task:
    async def read() -> Task:
        about = {"recipe": "cleaner-4b", "overrides": ["model.style=markdown", *overrides]}
        client: Any = None
        async with open_shared(client, configured("retcon", about), Tokenizer()) as shared:
            return shared.read(row)

    return asyncio.run(read())


def test_what_somebody_elses_row_leaves_out_is_as_the_recipe_says() -> None:
    task = read_under("task.kind=file", f"task.path={Path(__file__)}", "task.grader=exact", "task.system=Think.")
    assert (task.question, task.system, task.meta["grader"]) == ("6 times 7?", "Think.", "exact")
    assert read_under("task.kind=numbers").system is None


def test_tests_are_the_answer_to_a_custom_function() -> None:
    tests = '{"inputs": ["1"], "outputs": ["1"]}'
    row, file = {**ROW, "reward_model": {"ground_truth": tests}}, ("task.kind=file", f"task.path={Path(__file__)}")
    own = read_under(*file, "task.grader=my_rewards:style", row=row)
    assert (own.answer, own.meta["grader"]) == (tests, "my_rewards:style")
    assert read_under(*file, row=row).meta["grader"] == "code"
