"""What `retcon compare` means to do, and what it refuses before it does anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retcon.cli.compare import (
    COLD_STARTS,
    MOST,
    CompareOptions,
    Comparison,
    Match,
    arms_in,
    make_plan,
    name_arms,
    next_commands,
    read_arms,
)
from retcon.config.schema import stages_of
from retcon.core.errors import CheckpointError, RecipeError
from retcon.report.runs import run_folder

OPTIONS = CompareOptions(Path(), 2, "rollouts")
THREE = ("mini/dapo-baseline", "mini/cleaner", "mini/rstar2")


def planned(out: Path, *words: str, seeds: int = 2, match: Match = "rollouts", **options: object) -> Comparison:
    given = CompareOptions(out, seeds, match, **options)  # type: ignore[arg-type]
    return make_plan(given, read_arms(words, arms_in(out)), [word for word in words if "=" in word])


def varied(out: Path, vary: str, *words: str, **options: object) -> Comparison:
    given = CompareOptions(out, 1, "rollouts", start="base", **options)  # type: ignore[arg-type]
    return make_plan(given, read_arms(["mini/rlm", *words], arms_in(out), vary=vary), words)


def named_jobs(plan: Comparison) -> list[str]:
    return [target.job.name for target in plan.targets]


def test_seeds_come_one_after_the_other_with_all_arms_from_one_cold_start(tmp_path: Path) -> None:
    plan = planned(tmp_path, *THREE)
    trainings = [name for name in named_jobs(plan) if "eval" not in name]
    arms = ("dapo-baseline", "cleaner", "rstar2")
    of_a_seed = ("cold start", *arms)
    assert trainings == [f"{name}, seed {seed}" for seed in (0, 1) for name in of_a_seed]
    for seed in (0, 1):
        cold = plan.cold["", seed]
        assert "run.seed=" + str(seed) in cold.job.words
        for arm in plan.arms:
            job = plan.trained[arm.name, seed][0].job
            assert job.needs == (cold.job.name,)
            assert job.words[job.words.index("--from") + 1] == str(cold.makes.parent)
            assert f"run.seed={seed}" in job.words


def test_arms_are_measured_alike_without_and_with_repairs_and_under_faults(tmp_path: Path) -> None:
    plan = planned(tmp_path, *THREE, seeds=1)
    for arm in plan.arms:
        plain, repaired, faults = (target.recipe for target in plan.trained[arm.name, 0][1:])
        assert (plain.evaluate.repair, repaired.evaluate.repair, faults.evaluate.repair) == ("none", "saar", "none")
        assert (plain.evaluate.faults, repaired.evaluate.faults, faults.evaluate.faults) == (0.0, 0.0, 0.1)
        assert all(r.evaluate.problems == plain.evaluate.problems for r in (repaired, faults))
    assert len({plan.trained[arm.name, 0][1].recipe.evaluate.model_dump_json() for arm in plan.arms}) == 1
    assert len(planned(tmp_path, *THREE, seeds=1, faults=0.0).trained["cleaner", 0]) == 3


def test_what_is_next_is_the_same_command_with_seeds_enough_and_then_another_match(tmp_path: Path) -> None:
    words = ["compare", *THREE[:2], "--seeds", "2", "rl.steps=8", f"--out={tmp_path}"]
    *_, more = next_commands(planned(tmp_path, *THREE[:2]), OPTIONS, words)
    assert more.startswith(f"retcon compare {' '.join(THREE[:2])} rl.steps=8 --out={tmp_path} --seeds 5 ")
    *_, other = next_commands(planned(tmp_path, *THREE[:2], seeds=5), OPTIONS, words)
    assert other == f"retcon compare {' '.join(THREE[:2])} --seeds 2 rl.steps=8 --match tokens --out {tmp_path}-tokens"
    refused = next_commands(planned(tmp_path, *THREE[:2], "rl.schedule=cosine", seeds=5), OPTIONS, words)
    assert not any("--match" in line for line in refused), "no budget of tokens goes with it"


def test_a_learning_curve_is_measured_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    assert {arm.settings.evaluate.every for arm in planned(tmp_path, *THREE).arms} == {10}
    assert {arm.settings.evaluate.every for arm in planned(tmp_path, *THREE, "evaluate.every=0").arms} == {0}


def test_trackers_get_cold_starts_and_arms_under_names_of_their_own(tmp_path: Path) -> None:
    plan = planned(tmp_path, *THREE, "track.to=tests:Mine", seeds=1)
    arms = [plan.trained[arm.name, 0][0] for arm in plan.arms]
    assert plan.cold["", 0].recipe.track.name == "cold_start-seed-0"
    names = [target.recipe.track.name for target in arms]
    assert len(set(names)) == len(THREE)
    assert all(name.endswith("seed-0") for name in names)
    assert all("track.to=tests:Mine" in target.job.words for target in (plan.cold["", 0], *arms))


def test_overrides_go_where_they_belong(tmp_path: Path) -> None:
    plan = planned(tmp_path, *THREE, "sft.steps=9", "repair.gamma=0.7", "run.seed=4", seeds=1)
    assert list(plan.seeds) == [4]
    assert plan.cold["", 4].recipe.sft.steps == 9
    assert not any("repair.gamma" in word for word in plan.cold["", 4].job.words)
    assert plan.trained["cleaner", 4][0].recipe.repair.gamma == 0.7
    assert not any("repair.gamma" in word for word in plan.trained["rstar2", 4][0].job.words)


def test_a_kind_and_its_keys_go_together(tmp_path: Path, staged: str) -> None:
    server = ["engine.url=http://127.0.0.1:1", "engine.kind=vllm"]
    plan = planned(tmp_path / "out", *THREE, *server, seeds=1)
    assert all(set(server) <= set(target.job.words) for target in plan.targets)
    mixed = ["stages.half.repair.kind=branch", "stages.half.repair.gamma=0.7", "repair.kind=saar", "repair.gamma=0.6"]
    arms = planned(tmp_path / "more", "mini/dapo-baseline", staged, *mixed, seeds=1).arms
    assert [arm.settings.repair.model_dump()["gamma"] for arm in arms] == [0.6, 0.6]
    assert stages_of(arms[1].settings)[1].recipe.repair.model_dump()["gamma"] == 0.7
    with pytest.raises(RecipeError, match=r"override 'engine\.url=.*' *: .*belongs to kind = .*vllm"):
        planned(tmp_path / "out", *THREE, server[0])


def test_a_model_to_start_from_takes_the_place_of_the_cold_start(tmp_path: Path) -> None:
    plan = planned(tmp_path, *THREE, start="base")
    assert not plan.cold
    assert all(targets[0].job.needs == () for targets in plan.trained.values())
    with pytest.raises(RecipeError, match="give one of them"):
        planned(tmp_path, *THREE, start="base", cold="quickstart/cold_start")


def test_the_cold_start_can_have_a_recipe_of_its_own(tmp_path: Path) -> None:
    cold = planned(tmp_path, *THREE, cold="quickstart/cold_start").cold["", 0]
    assert cold.job.words[:2] == ("sft", "quickstart/cold_start")
    assert cold.recipe.run.threads == 2
    with pytest.raises(
        RecipeError, match=r"smollm2/cold_start and mini/dapo-baseline cannot be started alike: .*model\.path"
    ):
        planned(tmp_path, *THREE, cold="smollm2/cold_start")


@pytest.fixture
def half(tmp_path: Path) -> str:
    """A recipe with half as many prompts a step, and four minibatches."""
    file = tmp_path / "half.toml"
    file.write_text("[rl]\nsteps = 80\nprompts = 6\nminibatches = 4\nmax_kl = 0.5\n")
    return str(file)


@pytest.mark.parametrize(("match", "steps"), [("rollouts", 160), ("updates", 40)])
def test_steps_match_the_first_arms(tmp_path: Path, half: str, match: Match, steps: int) -> None:
    plan = planned(tmp_path / "out", "mini/dapo-baseline", half, match=match)
    assert [arm.settings.rl.steps for arm in plan.arms] == [80, steps]
    assert f"rl.steps={steps}" in plan.trained["half", 0][0].job.words
    odd = tmp_path / "odd.toml"
    odd.write_text("[rl]\nprompts = 7\nminibatches = 3\n")
    with pytest.raises(RecipeError, match=f"has .* {match}, and .*odd.toml has .* which does not divide that evenly"):
        planned(tmp_path / "out", "mini/dapo-baseline", str(odd), match=match)


@pytest.fixture
def staged(tmp_path: Path) -> str:
    """A recipe of two stages, of which the second has half as many prompts a step and four minibatches."""
    file = tmp_path / "staged.toml"
    file.write_text(
        "[rl]\nsteps = 80\n[[stages]]\nname = 'whole'\nsteps = 20\n[[stages]]\nname = 'half'\n"
        "rl.prompts = 6\nrl.minibatches = 4\nrepair.kind = 'saar'\n"
    )
    return str(file)


@pytest.mark.parametrize(("match", "steps"), [("rollouts", 140), ("updates", 50)])
def test_the_last_stage_matches_what_is_left(tmp_path: Path, staged: str, match: Match, steps: int) -> None:
    plan = planned(tmp_path / "out", "mini/dapo-baseline", staged, match=match)
    assert [arm.settings.rl.steps for arm in plan.arms] == [80, steps]
    first = planned(tmp_path / "out", staged, "mini/dapo-baseline", match=match)
    assert [arm.settings.rl.steps for arm in first.arms] == [80, 50 if match == "rollouts" else 140]
    (tmp_path / "few.toml").write_text("[rl]\nsteps = 20\n")
    with pytest.raises(RecipeError, match=rf"--match {match}: .* in its last stage, to which 0 are left, which does"):
        planned(tmp_path / "out", str(tmp_path / "few.toml"), staged, match=match)


@pytest.mark.parametrize("match", ["wall", "tokens"])
def test_an_arm_whose_last_stage_would_come_too_late_is_named_without_an_override_of_ours(
    tmp_path: Path, staged: str, match: Match
) -> None:
    (tmp_path / "few.toml").write_text("[rl]\nsteps = 2\n")
    with pytest.raises(RecipeError, match=rf"^--match {match}: .*staged\.toml has 20 steps before .* more than 20, "):
        planned(tmp_path / "out", str(tmp_path / "few.toml"), staged, match=match)


@pytest.mark.parametrize(
    ("match", "word"), [("tokens", "rl.max_sampled_tokens=1200"), ("wall", "rl.max_cpu_seconds=7.5")]
)
def test_a_budget_that_the_first_arm_sets_is_reported_once_it_is_trained(
    tmp_path: Path, match: Match, word: str
) -> None:
    plan = planned(tmp_path, *THREE, match=match)
    first, other = (plan.trained[name, 1][0] for name in ("dapo-baseline", "cleaner"))
    assert first.job.needs == ("cold start, seed 1",)
    assert first.job.late() == ()
    assert other.job.needs == (*first.job.needs, first.job.name), "which may have been removed since"
    assert other.recipe.rl.steps == MOST * first.recipe.rl.steps
    lines = [{"step": n + 1, "sampled_tokens": 400, "cpu_s": 2.5 * (n + 1)} for n in range(3)]
    folder = run_folder(tmp_path, "dapo-baseline", 1)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert other.job.late() == [word]
    with pytest.raises(RecipeError, match="schedule = cosine"):
        planned(tmp_path, *THREE, "rl.schedule=cosine", match=match)


def test_arms_that_are_there_keep_their_names() -> None:
    there = ("baseline", "saar")
    assert list(name_arms(["a/baseline", "a/saar", "b/saar.toml"], there).values()) == ["baseline", "saar", "b-saar"]
    assert list(name_arms(["a/saar", "a/baseline", "b/saar.toml"], there).values()) == [
        "a-saar",
        "a-baseline",
        "b-saar",
    ]
    assert list(name_arms(["a/x", "b/x"], ("a-x",)).values()) == ["a-x", "x"]


def test_the_values_of_a_key_are_the_arms_of_one_recipe(tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = varied(out, "credit.kind=root,inherit,node", "rl.steps=3", "credit.delegation=0.25")
    assert {arm.name: arm.settings.credit.kind for arm in plan.arms} == {
        kind: kind for kind in ("root", "inherit", "node")
    }
    assert {arm.settings.rl.steps for arm in plan.arms} == {3}
    assert "credit.delegation=0.25" not in plan.trained["inherit", 0][0].job.words  # a key of `node` alone
    for name, targets in ((arm.name, plan.trained[arm.name, 0]) for arm in plan.arms):
        assert all(f"credit.kind={name}" in target.job.words for target in targets)
    plan.open().save()
    assert json.loads((out / "comparison.json").read_text())["arms"]["node"] == "mini/rlm credit.kind=node"
    varied(out, "credit.kind=root,inherit,node", "rl.steps=3", "credit.delegation=0.25").open()
    with pytest.raises(CheckpointError, match=r"mini/rlm credit\.kind=root, .*: name these first"):
        varied(out, "credit.kind=node,root", "rl.steps=3").open()


@pytest.mark.parametrize(
    ("vary", "words", "said"),
    [
        ("credit.kind", ["mini/rlm"], "give a key and two values or more"),
        ("credit.kind=node,node", ["mini/rlm"], "give a key and two values or more"),
        ("credit.kind=node,rot", ["mini/rlm"], "did you mean 'root'"),
        ("credit.kind=node,root", ["mini/rlm", "mini/cleaner"], "arms of one recipe, and 2 are named"),
        ("credit.kind=node,root", ["mini/rlm", "credit.kind=node"], "credit.kind is varied and set"),
        (
            "task.length=100,120",
            ["mini/rlm"],
            "mini/rlm task.length=100 and .*=120 cannot be measured on the same problems",
        ),
        ("rl.steps=4,5", ["mini/rlm"], "the same recipe here: nothing distinguishes them but rl.steps"),
    ],
)
def test_values_that_make_no_arms_are_refused(vary: str, words: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        read_arms(words, vary=vary)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mini/dapo-baselin", "mini/cleaner"], "did you mean 'mini/dapo-baseline'"),
        (["mini/cleaner"], "two recipes or more"),
        (["mini/cleaner", "mini/cleaner"], "given twice"),
        (
            [
                "mini/dapo-baseline",
                "quickstart/baseline",
                "rl.steps=9",
                "evaluate.samples=8",
                "evaluate.top_p=1.0",
                "sandbox.cpu_seconds=0.5",
            ],
            "the same recipe here",
        ),
        (["mini/dapo-baseline", "smollm2/saar"], "measured on the same problems: .*task.kind was 'numbers', is 'file'"),
        (["mini/dapo-baseline", "mini/cleaner", "rl.step=3"], "did you mean 'steps'"),
        (["mini/dapo-baseline", "mini/rstar2", "evaluate.repair=saar"], "baseline: .* with purification off.*=none"),
        (["mini/dapo-baseline", "mini/rstar2", "evaluate.faults=.3"], "those of --faults.*faults=0.0"),
        (["mini/dapo-baseline", "mini/rstar2", "repair.gamma=0.3"], 'belongs to kind = "branch" or "saar"'),
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        read_arms(words)


def test_arms_of_a_trained_model_need_no_more_in_common_than_that_model(tmp_path: Path) -> None:
    model, own = tmp_path / "model", tmp_path / "own.toml"
    model.mkdir()
    (model / "config.json").write_text("{}")
    own.write_text("[sft]\nsteps = 301\n[demos]\nkind = 'engine'\n[repair]\nkind = 'saar'\n")
    path = f"model.path={model}"
    plan = planned(tmp_path / "out", "mini/dapo-baseline", str(own), path)
    assert not plan.cold
    assert all(str(model) in targets[0].job.words for targets in plan.trained.values())
    own.write_text("[sft]\nsteps = 301\n[dpo]\nbeta = 0.2\n")
    with pytest.raises(RecipeError, match=r"nothing distinguishes them$"):
        planned(tmp_path / "out", "mini/dapo-baseline", str(own), path)
    own.write_text("[model]\nstyle = 'hermes'\n[repair]\nkind = 'saar'\n")
    with pytest.raises(RecipeError, match=r"started alike: .*model\.style.*model\.style=…\. Or name a model.*--from"):
        planned(tmp_path / "out", "mini/dapo-baseline", str(own), path)


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no model"):
        planned(tmp_path, *THREE, start=str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match=r"retcon model get"):
        planned(tmp_path, "cleaner-4b", "dapo-baseline")


def test_a_folder_takes_further_arms_and_seeds_and_no_other_comparison(tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned(out, *THREE[:2]).open().save()
    planned(out, *THREE, seeds=3).open()
    planned(out, *THREE, "sandbox.url=http://a:1", "sandbox.workers=7").open()
    for words, options, said in [
        ((THREE[1], THREE[0]), {}, r"compares mini/dapo-baseline, mini/cleaner: name these first"),
        ((THREE[0], THREE[2]), {}, "name these first"),
        ((*THREE, "rl.lr=1e-4"), {}, r"rl\.lr was 0\.0002, is 0\.0001"),
        (THREE, {"match": "wall"}, "--match rollouts, not wall"),
        (THREE, {"start": "base"}, "--from None, not base"),
        (THREE, {"faults": 0.2}, r"--faults 0\.1, not 0\.2"),
    ]:
        with pytest.raises(CheckpointError, match=said):
            planned(out, *words, **options).open()  # type: ignore[arg-type]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds no comparison"):
        planned(tmp_path, *THREE).open()
    with pytest.raises(CheckpointError, match="is a file"):
        planned(tmp_path / "notes.txt", *THREE).open()


def test_demonstrations_may_be_there_before_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "cold_start").mkdir()
    (tmp_path / "cold_start" / "demonstrations-0.jsonl").touch()
    planned(tmp_path, *THREE).open(ours=(COLD_STARTS,))
    with pytest.raises(CheckpointError, match="holds no comparison"):
        planned(tmp_path, *THREE).open()
