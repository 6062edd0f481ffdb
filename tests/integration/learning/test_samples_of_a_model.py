"""The problems that a model solves once it has learnt: whose they are, and by which random streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.config.load import load_recipe
from retcon.core.errors import RecipeError
from retcon.core.seeds import derive
from retcon.runs.folder import RunFolder
from retcon.store import jsonl
from retcon.train.sft import SamplingPlan, SamplingResult, plan_sampling, sample_final
from training import Graded, make_base, small_recipe

pytestmark = pytest.mark.torch


def test_samples_are_named_after_the_last_step_and_drawn_as_the_evaluation_is(tmp_path: Path) -> None:
    """Whatever the seed of the run. The record says which model wrote them, after the system prompt, and that nothing
    was repaired."""
    make_base(tmp_path / "final")
    recipe = small_recipe(
        tmp_path / "final", engine={"kind": "scripted", "replies": ["1"]}, sft={"steps": 7, "samples": 3},
        evaluate={"seed": 9}, run={"seed": 5},
    )  # fmt: skip
    family, run = Graded(rewards=((1.0,), (-1.0,), (None,)), system="Be brief."), RunFolder(tmp_path)
    found = sample_final(SamplingPlan(recipe, family, tuple(family.evaluation(3, 0))), run)
    assert found == SamplingResult(passed=1, total=3, lost=1, file=run.trajectories(7))
    made = list(jsonl.read(found.file))
    assert [one.id for one in made] == [f"ones/evaluation/{n}/7/0" for n in range(3)]
    assert [one.provenance.seed for one in made] == [derive("rollout", 9, 7, one.task, 0) for one in made]
    assert {(one.provenance.model, one.provenance.purified) for one in made} == {(str(run.final), False)}
    assert all("Be brief." in "".join(segment.text for segment in one.prompt) for one in made)


def test_a_grader_that_cannot_be_had_is_reported_before_there_is_a_model_to_sample(tmp_path: Path) -> None:
    base, problems = make_base(tmp_path / "base"), tmp_path / "problems.jsonl"
    problems.write_text(json.dumps({"question": "What is 6 times 7?", "answer": "42"}) + "\n")
    keys = ("task.kind=file", f"task.path={problems}", "task.evaluation_share=1", "sft.samples=1")
    assert plan_sampling(load_recipe(None, keys), base, tmp_path / "run") is not None
    with pytest.raises(RecipeError, match="grader judge: url: Field required"):
        plan_sampling(load_recipe(None, [*keys, "task.grader=judge"]), base, tmp_path / "run")
