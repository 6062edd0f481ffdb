"""Lengths that a recipe leaves open follow the model and its tasks in demonstrations and in samples, as in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.cli.demonstrations import ensure_demonstrations
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.rollout.lengths import context_of
from retcon.store import jsonl
from retcon.tasks.grading.regrade import find_tasks
from retcon.train.sft import plan_sampling, run_sft
from teaching import annotated
from training import make_base, make_demonstrations

pytestmark = pytest.mark.torch


LIST = "print([1000 + n for n in range(40)])"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=4096)


def recipe_of(base: Path, folder: Path, *changes: str) -> Recipe:
    """Of problems whose prompts alone are longer than what the number game has for a whole rollout."""
    rows = [{**row, "question": f"{'Read with care. ' * 40}{row['question']}"} for row in annotated(3)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    given = (f"model.path={base}", "task.kind=file", f"task.path={folder / 'rows.jsonl'}", "task.evaluation_share=0",
             "sft.demonstrations=3", "sandbox.workers=1")  # fmt: skip
    return load_recipe(None, [*given, *changes])


def test_demonstrations_have_the_room_and_the_observations_that_training_has(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "d.jsonl"
    recipe = recipe_of(base, tmp_path, "demos.kind=engine", "engine.kind=scripted", "demos.tries=1",
                       f'engine.replies=["```python\\n{LIST}\\n```", "The answer is 1."]')  # fmt: skip
    with pytest.raises(RecipeError, match="3 wrong to the grader"):
        ensure_demonstrations(recipe, file, lambda *_: None)
    partial = (tmp_path / "d.jsonl.partial").read_bytes().splitlines()
    begun = json.loads(partial[0])["made_from"]
    assert begun["rollout"]["max_tokens"] > 700
    assert begun["sandbox"]["output_chars"] >= 100


@pytest.mark.parametrize(("words", "kept"), [(400, 1), (6000, 0)])
def test_a_transcript_may_be_as_long_as_the_model_takes(base: Path, tmp_path: Path, words: int, kept: int) -> None:
    said = [{"role": "user", "content": "9 " * words}, {"role": "assistant", "content": "It is 9."}]
    short = [{"role": "user", "content": "9"}, {"role": "assistant", "content": "It is 9."}]
    rows = tmp_path / "t.jsonl"
    rows.write_text("".join(json.dumps({"messages": one}) + "\n" for one in (said, short)), encoding="utf-8")
    recipe = load_recipe(None, [f"model.path={base}", "demos.kind=transcripts", f"demos.path={rows}"])
    summary = ensure_demonstrations(recipe, tmp_path / "d.jsonl", lambda *_: None)
    assert summary is not None
    assert summary.kept == 1 + kept
    assert dict(summary.rejected) == ({} if kept else {"no room in rollout.max_tokens": 1})
    note = json.loads((tmp_path / "d.jsonl.recipe.json").read_text(encoding="utf-8"))
    assert note["rollout"]["max_tokens"] == context_of(base)


def test_the_trained_model_has_room_for_the_samples_of_its_own_problems(base: Path, tmp_path: Path) -> None:
    demonstrations = make_demonstrations(base, tmp_path / "d.jsonl")
    changes = ("task.evaluation_share=1", "sft.samples=2", "sft.steps=1", "sft.batch=2", "rollout.max_turns=1")
    found = []
    run_sft(recipe_of(base, tmp_path, *changes), demonstrations, tmp_path / "run", on_samples=found.append)
    assert found[0].total == 2
    made = list(jsonl.read(found[0].file))
    assert all(one.turns for one in made)
    wanted = {one.task for one in made}
    assert find_tasks([found[0].file], wanted, None).keys() == wanted, "they can be graded anew"
    tight = recipe_of(base, tmp_path, *changes, "rollout.max_tokens=20")
    with pytest.raises(RecipeError, match="no room for an answer"):
        run_sft(tight, demonstrations, tmp_path / "tight")
    assert not (tmp_path / "tight").exists(), "before there is anything to train"
    with pytest.raises(RecipeError, match="no problem to evaluate on"):
        plan_sampling(recipe_of(base, tmp_path, *changes, "task.evaluation_share=0"), base, tmp_path / "run")


def test_samples_that_the_trained_model_has_no_positions_for_are_refused_before_it_is_trained(
    base: Path, tmp_path: Path
) -> None:
    demonstrations = make_demonstrations(base, tmp_path / "d.jsonl")
    changes = ("task.evaluation_share=1", "sft.samples=2", "sft.steps=1", "sft.batch=2", "rollout.max_tokens=4000")
    assert (
        plan_sampling(recipe_of(base, tmp_path, *changes, "rollout.lookahead_tokens=96"), base, tmp_path / "run")
        is not None
    )
    wide = recipe_of(base, tmp_path, *changes, "rollout.lookahead_tokens=97")
    with pytest.raises(RecipeError, match=r" = 4097, and the model has 4096 positions.*leave sft\.samples"):
        run_sft(wide, demonstrations, tmp_path / "wide")
    assert not (tmp_path / "wide").exists()


def test_a_server_of_text_is_no_teacher_whose_ids_are_learnt(base: Path, tmp_path: Path) -> None:
    recipe = recipe_of(base, tmp_path, "demos.kind=engine", "engine.kind=openai", "engine.url=http://127.0.0.1:9/v1")
    with pytest.raises(RecipeError, match=r"a teacher behind a URL is demos\.kind = 'openai'"):
        ensure_demonstrations(recipe, tmp_path / "d.jsonl", lambda *_: None)


# The journal of demonstrations that a process was killed beside, once they were in their place.
