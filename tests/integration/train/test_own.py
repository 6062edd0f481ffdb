"""`retcon.train`: problems in Python, from any kind of row, also where an event loop runs."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import retcon
from retcon.core.errors import CheckpointError, RecipeError
from retcon.runs.folder import RunFolder

pytestmark = pytest.mark.torch
PLAIN = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(8)]
SIZE = {"rl.steps": 1, "rl.prompts": 2, "rl.group": 2, "rollout.max_tokens": 160, "rl.lr": 1e-4, "task.system": ""}
VERL = [
    {"prompt": [{"role": "user", "content": one["question"]}], "reward_model": {"ground_truth": one["answer"]}}
    for one in PLAIN
]
MATH = [{"problem": one["question"], "solution": f"It is \\boxed{{{one['answer']}}}."} for one in PLAIN]


class Dataset:
    """Rows as `datasets.Dataset` and TRL's loaders yield them: by iteration alone."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


def trained(out: Path, problems: Iterable[Mapping[str, Any]] | str | Path) -> RunFolder:
    return retcon.train("own", problems, model="base", out=out, settings=SIZE)


@pytest.mark.parametrize("rows", [PLAIN, VERL, Dataset(MATH)], ids=["plain", "verl", "math"])
def test_rows_are_trained_on(tmp_path: Path, rows: Any) -> None:
    run = trained(tmp_path / "run", rows)
    assert run.finished
    assert [line["step"] for line in run.read_metrics()] == [1]


def test_a_notebook_has_a_loop_that_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(map(json.dumps, PLAIN)))

    async def cell() -> RunFolder:
        return trained(tmp_path / "run", file)

    assert asyncio.run(cell()).finished


def test_what_is_no_row_is_refused_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"problems\[1\] is str 'What\?': give dicts such as"):
        trained(tmp_path / "run", [*PLAIN[:1], "What?"])  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_with_its_own_problems_only(tmp_path: Path) -> None:
    trained(tmp_path / "run", PLAIN)
    with pytest.raises(CheckpointError, match="was begun with other problems"):
        trained(tmp_path / "run", PLAIN[1:])
    assert trained(tmp_path / "run", PLAIN).finished
