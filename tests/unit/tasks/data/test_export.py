"""Tasks as rows of verl's data sets, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="Parquet needs the [formats] extra")

import pyarrow.parquet

from datafiles import ROWS, tasks, write
from retcon.config.load import load_recipe
from retcon.core.errors import RecordError
from retcon.plugins.verl.tasks import reading_of, task_of
from retcon.tasks.data.conventions import verl_rows, write_verl
from retcon.tasks.data.fields import DataError
from retcon.tasks.types import Task

SPOKEN = Task(
    "odd/1", "And 6 times 7?\nSay «42».", r"\frac{1}{2}", "Be brief.", {"grader": "exact", "tests": [{"in": [None]}]},
    (("user", "What is 1 and 1?"), ("assistant", "2")),
)  # fmt: skip


def exported(file: Path, given: list[Task], system: str | None = None) -> list[dict[str, Any]]:
    assert write_verl(file, verl_rows(given, split="train", system=system, source="mine")) == len(given)
    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    return rows


@pytest.mark.parametrize("name", ROWS)
def test_a_task_of_every_convention_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    given = tasks(write(tmp_path / "a.jsonl", [ROWS[name]]))
    (row,) = exported(tmp_path / "a.parquet", given)
    assert tasks(str(tmp_path / "a.parquet"), name="a") == given
    assert task_of({**row, "raw_prompt": row.pop("prompt")}) == given[0]


def test_what_is_said_before_and_what_graders_need_come_back(tmp_path: Path) -> None:
    (row,) = exported(tmp_path / "a.parquet", [SPOKEN])
    assert [message["role"] for message in row["prompt"]] == ["system", "user", "assistant", "user"]
    assert (row["data_source"], row["agent_name"]) == ("mine", "retcon")
    assert row["reward_model"] == {"style": "rule", "ground_truth": SPOKEN.answer}
    assert tasks(str(tmp_path / "a.parquet"), name="odd") == [SPOKEN]


def test_what_a_row_leaves_out_is_as_the_recipe_says() -> None:
    section = load_recipe(None, ["task.kind=file", "task.path=a", "task.grader=exact", "task.system=Think."]).task
    read, row = reading_of(section, None), {**ROWS["verl"], "raw_prompt": [{"role": "user", "content": "Which?"}]}
    assert (read(row).system, read(row).meta["grader"]) == ("Think.", "exact")
    spoken = {**row, "raw_prompt": ROWS["verl"]["prompt"], "grader": "choice"}
    assert (read(spoken).system, read(spoken).meta["grader"]) == ("Be brief.", "choice")
    said_nothing = reading_of(load_recipe(None, ["task.kind=file", "task.path=a"]).task, None)(row)
    assert (said_nothing.system, said_nothing.meta["grader"]) == (None, "math")
    wrong = load_recipe(None, ["task.kind=file", "task.path=a", "task.grader=exakt"]).task
    with pytest.raises(DataError, match=r"task\.grader: no grader 'exakt' \(did you mean 'exact'"):
        reading_of(wrong, None)
    family: Any = SimpleNamespace(system="Add.")
    assert reading_of(load_recipe(None).task, family)(row).system == "Add."


def test_what_cannot_be_written_is_refused_and_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    exported(file, [SPOKEN])
    before = file.read_bytes()
    with pytest.raises(DataError, match="task odd/1: what it holds besides cannot be written as JSON"):
        exported(file, [replace(SPOKEN, meta={"set": {1}})])
    with pytest.raises(DataError, match="no task"):
        exported(file, [])
    assert file.read_bytes() == before
    with pytest.raises(RecordError, match="folder"):
        exported(tmp_path, [SPOKEN])
