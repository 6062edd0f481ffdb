"""`task.graders`: the settings of graders in a recipe, given to whoever grades and looked at before work starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the model in the package is loaded by the [train] extra")

from comparing import answer, trajectory
from datafiles import ROWS, write
from retcon.build import build_tasks
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.models.locating import locate
from retcon.store import jsonl
from retcon.tasks.grading.grading import GradeSettings
from retcon.tasks.grading.regrade import ABOUT, RegradeJob, regrade

ADDS = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
MULTIPLIES = ADDS.replace("a + b", "a * b")
TESTS = {"inputs": ["1 2", "2 2"], "outputs": ["3", "4"]}


def recipe_of(folder: Path, *overrides: str) -> Recipe:
    path = write(folder / "a.jsonl", [{**ROWS["apps"], "input_output": json.dumps(TESTS)}])
    return load_recipe(None, ["task.kind=file", f"task.path={path}", "task.evaluation_share=0", *overrides])


@pytest.mark.parametrize(
    ("grader", "graders", "told"),
    [
        ("judge", "{}", r"grader judge: url: Field required.*: its settings belong in task\.graders = . judge = "),
        ("mean", "{}", r"grader mean: of: Field required.*: its settings belong in task\.graders"),
        ("mean", "{mean = {of = {exact = 1, judge = 1}}}", r"grader judge: url: Field required"),
        ("mean", "{mean = {of = {mean = 1}}}", "of cannot name mean itself"),
        ("mean", "{mean = {of = {exat = 1}}}", r"no grader 'exat' \(did you mean 'exact'\?\)"),
    ],
)
def test_a_grader_whose_settings_lack_is_refused_before_work_starts(
    grader: str, graders: str, told: str, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, f"task.grader={grader}", f"task.graders={graders}", "task.format=plain")
    write(tmp_path / "a.jsonl", [ROWS["plain"]])
    with pytest.raises(RecipeError, match=told):
        build_tasks(recipe, locate("base"))


def test_judges_and_means_are_graders_of_a_run(tmp_path: Path) -> None:
    judge = '{url = "http://127.0.0.1:1/v1", model = "m", key_env = ""}'
    graders = f"task.graders={{judge = {judge}, mean = {{of = {{judge = 1, exact = 2}}}}}}"
    recipe = recipe_of(tmp_path, "task.grader=mean", graders, "task.format=plain")
    write(tmp_path / "a.jsonl", [ROWS["plain"]])
    assert next(build_tasks(recipe, locate("base")).train(0)).meta["grader"] == "mean"


@pytest.mark.parametrize(
    ("graders", "told"),
    [
        ("{cod = {}}", r"task\.graders.*no grader 'cod' \(did you mean 'code'\?\)"),
        ("{code = {scor = 1}}", r"grader code: no key 'scor' \(did you mean 'score'\?\)"),
        ('{code = {score = "most"}}', "grader code: score: "),
        ("{function = {second = 1}}", r"grader function: no key 'second' \(did you mean 'seconds'\?\)"),
        ("{judge = {}}", "grader judge: url: Field required"),
        ("{code = 3}", r"task\.graders"),
    ],
)
def test_settings_that_are_none_are_refused_as_the_recipe_is_read(graders: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=told):
        recipe_of(tmp_path, f"task.graders={graders}")


@pytest.mark.parametrize(("given", "reward"), [({}, 0.5), ({"code": {"score": "all"}}, 0.0)])
def test_rollouts_of_a_run_are_scored_again_by_its_settings(
    given: dict[str, dict[str, object]], reward: float, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, 'task.graders={code = {score = "share", seconds = 5}}')
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text(json.dumps({"recipe": recipe.model_dump(mode="json")}))
    task = next(build_tasks(recipe).train(0))
    made = replace(trajectory("t/0/0", answer(MULTIPLIES), reward=0.5, question=task.question), task=task.id)
    jsonl.write(tmp_path / "run/trajectories-t1.jsonl", [made])
    job = RegradeJob(tmp_path / "run", tmp_path / "out", GradeSettings(rewards="graded", options=given))
    assert [one.reward for one in regrade(job, lambda *_: None)] == [reward]
    used = json.loads((tmp_path / "out" / ABOUT).read_text())["settings"]["options"]
    assert used == {"code": {"score": "share", "seconds": 5, **given.get("code", {})}}
