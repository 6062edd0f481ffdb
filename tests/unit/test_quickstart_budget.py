"""How long a quickstart is reckoned to take, and how its steps are fitted to a time."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from retcon.cli.quickstart import SETS, Quickstart, QuickstartOptions, choose_set, make_plan, prepare
from retcon.cli.quickstart_budget import Lengths, Speed, budget_of, budget_table, fit_steps
from retcon.core.errors import RecipeError

LENGTHS = Lengths(prompt=60.0, sampled=40.0)
SPEED = Speed(learnt=100.0, learnt_threads=200.0, sampled=400.0)
SMALL = (
    "sft.steps=10", "sft.batch=20", "rl.steps=5", "rl.prompts=10", "rl.group=8", "evaluate.problems=100",
    "evaluate.samples=4",
)  # fmt: skip


def plan(out: Path, *overrides: str, arms: Sequence[str] = ("baseline", "saar")) -> Quickstart:
    return make_plan(
        out,
        arms=arms,
        seeds=1,
        overrides=[*SMALL, *overrides],
        about=SETS["smollm2"],
        options=["smollm2"],
    )


def test_the_first_word_names_the_quickstart_and_changes_nothing_else() -> None:
    assert choose_set(["smollm2", "rl.steps=5"]) == ("smollm2", ["rl.steps=5"])
    assert choose_set(["rl.steps=5"]) == ("numbers", ["rl.steps=5"])
    assert choose_set([]) == ("numbers", [])
    with pytest.raises(RecipeError, match=r"no quickstart 'smolm2' \(did you mean 'smollm2'\?\).*numbers, smollm2"):
        choose_set(["smolm2"])
    with pytest.raises(RecipeError, match="'numbers' is not an override"):
        choose_set(["smollm2", "numbers"])


def test_the_arms_of_smollm2_differ_in_what_they_are_named_after_alone(tmp_path: Path) -> None:
    arms = plan(tmp_path, arms=SETS["smollm2"].arms).trained
    recipes = {arm: training.recipe.model_dump() for (arm, _), (training, _) in arms.items()}
    own = {arm: (recipe.pop("repair")["kind"], recipe.pop("select")["kind"]) for arm, recipe in recipes.items()}
    assert own == {
        "baseline": ("none", "none"), "blame": ("none", "none"), "roc": ("none", "roc"), "saar": ("saar", "none"),
    }  # fmt: skip
    assert {arm: recipe["rl"].pop("blame") for arm, recipe in recipes.items()} == dict.fromkeys(own, 0.0) | {
        "blame": 0.5
    }
    assert all(recipe == recipes["baseline"] for recipe in recipes.values())


def test_every_job_is_reckoned_by_its_tokens(tmp_path: Path) -> None:
    made = plan(tmp_path)
    budget = budget_of(made, SPEED, LENGTHS, at_once=2)
    assert budget.cold.learnt == 10 * 20 * 100
    assert budget.cold.seconds == 100.0
    training, evaluation = budget.chains[0]
    assert (training.sampled, training.learnt) == (5 * 10 * 8 * 40, 5 * 10 * (60 + 8 * 40))
    assert training.seconds == 16_000 / 400 + 19_000 / 100
    assert (evaluation.steps, evaluation.sampled) == (0, 100 * 4 * 40)  # one setting: the recipes' top-p is 1
    assert budget.seconds() == 100.0 + (230.0 + 40.0) + 40.0  # two arms side by side, then the cold start's evaluation
    assert budget.seconds(0) == 2 * 40.0
    assert budget_of(made, SPEED, LENGTHS, at_once=1).seconds() == 100.0 + 2 * (230.0 + 40.0) + 40.0


@pytest.mark.parametrize("hours", [0.5, 1.0, 8.0])
def test_steps_are_fitted_to_a_time(tmp_path: Path, hours: float) -> None:
    made = plan(tmp_path)
    budget = budget_of(made, SPEED, LENGTHS, at_once=2)
    fitted = plan(tmp_path, *fit_steps(made, budget, hours, 6000))
    assert budget_of(fitted, SPEED, LENGTHS, at_once=2).seconds() == pytest.approx(hours * 3600, rel=0.05)
    recipe = fitted.cold_targets[0].recipe
    assert recipe.sft.demonstrations == min(recipe.sft.steps * 20, SETS["smollm2"].demonstrations)


def test_hours_in_which_nothing_is_learnt_are_refused(tmp_path: Path) -> None:
    budget = budget_of(plan(tmp_path), SPEED, LENGTHS, at_once=2)
    with pytest.raises(RecipeError, match=r"--hours 0\.01 is too short here: evaluations take 0\.02 hours"):
        fit_steps(plan(tmp_path), budget, 0.01, 6000)


def test_the_plan_is_printed_a_stage_a_row(tmp_path: Path) -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(budget_table(budget_of(plan(tmp_path), SPEED, LENGTHS, at_once=2), LENGTHS))
    rows = {line.split("  ")[0].strip(): line.split() for line in captured.get().splitlines() if line.strip()}
    assert rows["cold start"][-4:] == ["10", "20,000", "–", "1.7"]
    assert rows["saar, seed 1, evaluation"][-4:] == ["–", "–", "16,000", "0.7"]
    assert rows["in all, 2 at once"][-1] == "7"


def wished(tmp_path: Path, hours: float | None) -> QuickstartOptions:
    """For the base model, on 60 problems of one's own."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"question": "What is {n} plus 1?", "answer": "{n + 1}"}}\n' for n in range(60)))
    small = ("model.path=base", "evaluate.problems=4", "evaluate.samples=2")
    return QuickstartOptions("smollm2", tmp_path / "out", arms=("baseline",), overrides=small, data=data, hours=hours)


@pytest.mark.torch
def test_hours_are_fitted_once_by_a_measurement_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the model's folder is found by the [train] extra")
    asked: list[tuple[str, ...]] = []

    def measured(_recipe: str, overrides: Sequence[str]) -> Speed:
        asked.append(tuple(overrides))
        return Speed(2000.0, 4000.0, 1000.0)

    monkeypatch.setattr("retcon.cli.quickstart.measure_speed", measured)
    shown = StringIO()
    console = Console(file=shown, width=100)
    free = prepare(wished(tmp_path, None), console)
    few, many = (prepare(wished(tmp_path, hours), console) for hours in (0.5, 4))
    steps = [made.cold_targets[0].recipe.sft.steps for made in (free, few, many)]
    assert steps[1] < steps[2] != steps[0]
    assert few.settings["fitted"]
    assert f"rl.steps={next(iter(few.trained.values()))[0].recipe.rl.steps}" in few.settings["fitted"]
    assert len(asked) == 3
    assert "The plan" in shown.getvalue()
    many.save()
    assert prepare(wished(tmp_path, 4), console).settings["fitted"] == many.settings["fitted"]
    assert len(asked) == 3, "a folder that was begun goes on as it was fitted"


def test_hours_are_of_a_quickstart_that_is_measured(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="--hours is not for the quickstart 'numbers'; it is for: smollm2"):
        prepare(QuickstartOptions("numbers", tmp_path, ("baseline",), hours=1.0), Console(file=StringIO()))
