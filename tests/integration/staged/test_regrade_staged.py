"""`retcon regrade` of a run whose stages have data and graders of their own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from comparing import answer, trajectory
from retcon.config.schema import Recipe
from retcon.store import jsonl
from retcon.tasks.grading.grading import GradeSettings
from retcon.tasks.grading.regrade import ABOUT, RegradeJob, regrade
from retcon.train.rl import run_rl
from training import make_base, small_recipe

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["", "mine"])
def test_rollouts_are_graded_by_the_tasks_and_graders_of_their_stage(name: str, tmp_path: Path) -> None:
    """Both files have rows of the same numbers, with other answers."""
    for stem, more in (("one", 1), ("other", 2)):
        rows = ({"id": n, "question": f"What is {n} + {more}?", "answer": str(n + more)} for n in range(40))
        (tmp_path / f"{stem}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base, own = make_base(tmp_path / "base"), {"code": {"score": "share"}}
    stages = [
        {"name": "a", "steps": 1},
        {"name": "b", "steps": 1, "task": {"path": str(tmp_path / "other.jsonl"), "graders": own}},
        {"name": "c", "rollout": {"max_turns": 2}},
    ]
    recipe = small_recipe(
        base,
        task={"kind": "file", "path": str(tmp_path / "one.jsonl"), "name": name, "evaluation_share": 0.0},
        rl={"steps": 3, "prompts": 2, "group": 2},
        rollout={"max_tokens": 64, "max_turns": 1, "lookahead_tokens": 0},
        repair={"kind": "none"},
    )
    staged = Recipe.model_validate({**recipe.model_dump(mode="json", exclude_unset=True), "stages": stages})
    run_rl(staged, base, tmp_path / "run")
    kept = sorted((tmp_path / "run/trajectories").glob("*.jsonl.zst"))
    assert [file.name for file in kept] == [f"step-00000{n}.jsonl.zst" for n in (1, 2, 3)]
    for number, file in enumerate(kept, 1):  # as if the model had answered what the stage's own file says
        more = 2 if number == 2 else 1
        right = [
            replace(
                trajectory(one.id, answer(rf"\boxed{{{int(one.task.rpartition('/')[2]) + more}}}"), reward=-1.0),
                task=one.task,
                prompt=one.prompt,
            )
            for one in jsonl.read(file)
        ]
        jsonl.write(file, right)

    done = regrade(RegradeJob(tmp_path / "run", tmp_path / "again", GradeSettings("math")), lambda *_: None)
    assert [one.reward for one in done] == [1.0] * 12
    settings = json.loads((tmp_path / "again" / ABOUT).read_text())["settings"]
    assert [one["options"] for one in settings] == [{}, own, {}]
    alone = RegradeJob(kept[1], tmp_path / "alone", GradeSettings("math"))
    assert [one.reward for one in regrade(alone, lambda *_: None)] == [1.0] * 4
