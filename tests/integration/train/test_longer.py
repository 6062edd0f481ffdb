"""A run gets longer by a larger rl.steps, and equals one that was so long from the beginning."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import retcon
from retcon.runs.folder import RunFolder

pytestmark = pytest.mark.torch
SIZE = {"rl.prompts": 2, "rl.group": 2, "rollout.max_tokens": 160, "rl.lr": 1e-3, "task.system": ""}


def trained(out: Path, steps: int, **more: Any) -> RunFolder:
    problems = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(8)]
    settings = {**SIZE, "rl.steps": steps, **{key.replace("_", ".", 1): value for key, value in more.items()}}
    file = out.parent / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in problems))
    return retcon.train("own", file, model="base", out=out, settings=settings)


def test_a_longer_run_goes_on_to_the_weights_of_one_begun_so_long(tmp_path: Path) -> None:
    trained(tmp_path / "grown", 1)
    grown, whole = trained(tmp_path / "grown", 3), trained(tmp_path / "whole", 3)
    assert [line["step"] for line in grown.read_metrics()] == [1, 2, 3]
    assert (grown.root / "final-1/config.json").is_file(), "the model of the shorter run is kept"
    one, other = (load_file(run.final / "model.safetensors") for run in (grown, whole))
    assert all(bool((one[name] == other[name]).all()) for name in other)
    about = [json.loads((run.root / "run.json").read_text()) for run in (grown, whole)]
    assert about[0]["inputs"] == about[1]["inputs"]
    assert trained(tmp_path / "grown", 3).finished, "the same command finds it finished"
