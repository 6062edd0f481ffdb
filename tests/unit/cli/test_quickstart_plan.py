"""What the quickstart means to do, and what it remembers of it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retcon.cli.app import app
from retcon.cli.quickstart import SETS, make_plan
from retcon.core.errors import CheckpointError, RecipeError


def test_arms_differ_in_their_recipe_and_seeds_in_nothing_else(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, arms=["baseline", "saar"], seeds=2, overrides=["run.seed=0"])
    assert list(plan.trained) == [("baseline", 0), ("saar", 0), ("baseline", 1), ("saar", 1)]
    one, other = (plan.trained["saar", seed][0].recipe.model_dump() for seed in (0, 1))
    assert one["run"].pop("seed") + 1 == other["run"].pop("seed")
    assert one == other
    words = plan.trained["saar", 1][0].job.words
    assert words[:2] == ("train", "quickstart/saar")
    assert "run.seed=1" in words
    assert words[-4:] == ("--from", str(tmp_path / "cold_start"), "--out", str(tmp_path / "saar" / "seed-1"))


def test_every_override_reaches_a_job_or_is_refused(tmp_path: Path) -> None:
    words = ["strategy.kind=arpo", "run.threads=3", "engine.kind=local", "demos.kind=engine", "run.seed=7"]
    plan = make_plan(tmp_path, arms=["baseline", "saar"], seeds=2, overrides=words)
    trained = [train for train, _ in plan.trained.values()]
    assert {train.recipe.strategy.kind for train in trained} == {"arpo"}
    assert [train.recipe.run.seed for train in trained] == [7, 7, 8, 8]
    assert {target.recipe.run.threads for target in plan.targets} == {3}
    assert {target.job.threads for target in plan.targets if target.job.words[0] != "eval"} == {3}
    assert "engine.kind=local" in plan.cold_targets[0].job.words, "the demonstrations' teacher"
    with pytest.raises(RecipeError, match=r"'dpo\.beta=0\.3': no job of a quickstart has a use for dpo\.beta"):
        make_plan(tmp_path, arms=["saar"], seeds=1, overrides=["dpo.beta=0.3"])


def test_a_kind_and_its_keys_go_together(tmp_path: Path) -> None:
    """Whatever the order: a key may be of a kind that an override chooses, of the jobs that this one reaches."""
    server = ["engine.url=http://127.0.0.1:1", "engine.kind=vllm"]
    teacher = ["demos.model=smollm2", "demos.kind=engine"]
    limits = ["strategy.kind=arpo", "strategy.initial=3"]
    plan = make_plan(tmp_path, arms=["baseline", "saar"], seeds=1, overrides=[*server, *teacher, *limits])
    assert {target.recipe.engine.kind for target in plan.targets} == {"vllm"}
    assert all(set(server) <= set(target.job.words) for target in plan.targets)
    assert plan.cold_targets[0].recipe.demos.model_dump()["model"] == "smollm2"
    assert {train.recipe.strategy.model_dump()["initial"] for train, _ in plan.trained.values()} == {3}
    for alone, kinds in (
        ("engine.url=http://127.0.0.1:1", "kind = .*vllm"),
        ("demos.model=smollm2", "kind = .*engine"),
    ):
        with pytest.raises(RecipeError, match=f"override '{alone}': .* belongs to {kinds}"):
            make_plan(tmp_path, arms=["saar"], seeds=1, overrides=[alone])
    with pytest.raises(RecipeError, match=r"override 'engine\.kind=vlm': .*did you mean 'vllm'"):
        make_plan(tmp_path, arms=["saar"], seeds=1, overrides=["engine.kind=vlm", "engine.url=http://127.0.0.1:1"])


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["rollout.temperature=0"], r"rollout\.temperature = 0 is greedy"),
        (["select.max_pass_rate=0.5"], r"select\.max_pass_rate = 0\.5 leaves out nothing"),
        (["rollout.temperature=0.6", "rl.max_staleness=1"], r"rl\.max_staleness = 1 uses the log-probs"),
    ],
)
def test_what_an_arm_would_refuse_is_refused_before_the_cold_start(
    tmp_path: Path, overrides: list[str], told: str
) -> None:
    with pytest.raises(RecipeError, match=told):
        make_plan(tmp_path, arms=["saar"], seeds=1, overrides=overrides)


def test_what_its_table_says_of_the_evaluations_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"'evaluate\.repair=saar': .*repair must be none here, as the table states"):
        make_plan(tmp_path, arms=["saar"], seeds=1, overrides=["evaluate.repair=saar"])


@pytest.mark.parametrize("arm", ["cold_start", "nothing"])
def test_what_is_no_arm_is_refused(tmp_path: Path, arm: str) -> None:
    with pytest.raises(RecipeError, match=f"no arm '{arm}'.*baseline, blame, roc, saar"):
        make_plan(tmp_path, arms=[arm], seeds=1)


def test_the_ledger_refuses_other_recipes_and_takes_further_arms(tmp_path: Path) -> None:
    make_plan(tmp_path, arms=["saar"], seeds=1).open().save()
    make_plan(tmp_path, arms=["saar", "roc"], seeds=2).open()
    with pytest.raises(CheckpointError, match=r"rl\.steps was 36, is 5.*choose another --out"):
        make_plan(tmp_path, arms=["saar"], seeds=1, overrides=["rl.steps=5"]).open()


def test_a_broken_record_is_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, arms=["saar"], seeds=1)
    plan.open().save()
    path = tmp_path / "quickstart.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 100.0}))
    assert plan.open().record.seconds == 100.0
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"quickstart\.json cannot be read"):
        plan.open()


def test_the_arms_are_the_usual_ones_or_those_that_are_named_once() -> None:
    assert SETS["numbers"].parse_arms(None) == ("baseline", "saar", "blame")
    assert SETS["numbers"].parse_arms("roc, saar,,roc") == ("roc", "saar")
    with pytest.raises(RecipeError, match="--arms names no arm; there are: baseline, blame, roc, saar"):
        SETS["numbers"].parse_arms(" ,")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the quickstart needs the [train] extra")
    (tmp_path / "report.html").write_text("mine")
    done = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path)])
    assert isinstance(done.exception, CheckpointError)
    assert "has no quickstart.json: it holds no quickstart; choose another --out" in str(done.exception)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
