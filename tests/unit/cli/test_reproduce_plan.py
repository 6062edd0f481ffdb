"""What `retcon reproduce` means to train, and what it refuses before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from retcon.cli.compare import CompareOptions
from retcon.cli.reproduce import (
    PAPERS,
    Reproduction,
    find_paper,
    make_arms,
    make_reproduction,
    quick_overrides,
    recipes_of,
    select_studies,
)
from retcon.config.schema import stages_of
from retcon.core.errors import RecipeError


def planned(out: Path, paper: str, only: str | None = None, *overrides: str, seeds: int = 1) -> Reproduction:
    about, recipes = PAPERS[paper], dict(PAPERS[paper].recipes)
    options = CompareOptions(out, seeds, "rollouts", faults=0.0)
    return make_reproduction(options, about, select_studies(about, only), recipes, overrides)


def test_only_the_arms_of_the_wanted_studies_are_trained(tmp_path: Path) -> None:
    jobs = [target.job.name for target in planned(tmp_path, "cleaner", "switch,recovery").targets]
    trained = [name for name in jobs if "eval" not in name]
    assert trained == [f"{name}, seed 0" for name in ("cold start", "baseline", "cleaner", "recovery")]
    repaired = [name for name in jobs if name.endswith("eval-repaired")]
    assert repaired == ["baseline, seed 0, eval-repaired", "cleaner, seed 0, eval-repaired"], "those of `switch` alone"
    assert sum(name.endswith("eval") for name in jobs) == 3


def test_recipes_of_another_size_take_the_places_of_the_small_ones(tmp_path: Path) -> None:
    paper = PAPERS["cleaner"]
    recipes = recipes_of(paper, ["baseline=dapo-baseline", "method=cleaner-4b", "second=cleaner-7b"])
    arms = {arm.name: arm for arm in make_arms(paper.variants, recipes, (), tmp_path)}
    models = {name: arm.settings.model.path for name, arm in arms.items()}
    assert {models[name] for name, arm in arms.items() if not arm.start} == {"Gen-Verse/Qwen3-4B-RA-SFT"}
    assert {models[name] for name, arm in arms.items() if arm.start} == {"Gen-Verse/Qwen2.5-7B-RA-SFT"}
    assert stages_of(arms["recovery"].settings)[1].recipe.repair.kind == "saar"
    assert (arms["cleaner"].settings.rl.lr, arms["cleaner-slow"].settings.rl.lr) == (2e-6, 1e-6), "as in table 3"


def test_a_model_for_all_is_refused_where_every_arm_has_one_of_its_own(tmp_path: Path) -> None:
    paper = PAPERS["cleaner"]
    options = CompareOptions(tmp_path / "out", 1, "rollouts", start="base", faults=0.0)
    with pytest.raises(RecipeError, match=r"--from: the arms second-baseline, .* begin at a model of their own"):
        make_reproduction(options, paper, select_studies(paper, "size"), paper.recipes, ())


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_a_quick_reproduction_has_six_steps_an_arm_and_takes_changes(paper: str, tmp_path: Path) -> None:
    about = PAPERS[paper]
    words = quick_overrides(about, about.studies, about.recipes)
    assert words == list(about.quick)
    arms = planned(tmp_path, paper, None, *words, "evaluate.problems=5").compared.arms
    assert {arm.settings.rl.steps for arm in arms} == {6}
    assert {arm.settings.evaluate.problems for arm in arms} == {5}
    assert {arm.settings.evaluate.samples for arm in arms} == {16}, "pass@16 takes as many"
    some = select_studies(about, "errors")  # whose arms have no stages
    planned(tmp_path / "some", paper, "errors", *quick_overrides(about, some, about.recipes))


def test_evaluations_are_under_the_conditions_that_the_page_names(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="with purification off"):
        planned(tmp_path, "cleaner", "main", "evaluate.repair=saar")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["claener"], "did you mean 'cleaner'"),
        (["rl.steps=4"], "there are cleaner and rstar2"),
        (["cleaner", "main"], "is not an override"),
    ],
)
def test_an_unknown_paper_is_refused_with_the_nearest(words: list[str], told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        find_paper(words)


@pytest.mark.parametrize(("only", "told"), [("gama", "did you mean 'gamma'"), (",", "names no study: main")])
def test_an_unknown_study_is_refused_with_the_nearest(only: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        select_studies(PAPERS["cleaner"], only)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("methd=cleaner-4b", "did you mean 'method'"),
        ("cleaner-4b", "is no ROLE=RECIPE"),
        ("method=cleaner-4", "no recipe 'cleaner-4'"),
    ],
)
def test_an_unknown_role_or_recipe_is_refused(given: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        recipes_of(PAPERS["cleaner"], [given])


def test_an_arm_that_switches_needs_two_steps(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"rl\.steps = 1: recovery changes its \[repair\] halfway, which takes 2"):
        planned(tmp_path, "cleaner", "recovery", "rl.steps=1")
    assert planned(tmp_path, "cleaner", "switch", "rl.steps=1").about.keys() == {"baseline", "cleaner"}


def test_arms_that_a_change_makes_alike_are_named(tmp_path: Path) -> None:
    """Their recipe is one: by its name nobody could tell which they are."""
    with pytest.raises(RecipeError, match="the arms cleaner and attempts-2, of mini/cleaner, are the same recipe here"):
        planned(tmp_path, "cleaner", None, "repair.attempts=2")
