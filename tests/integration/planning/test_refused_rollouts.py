"""What an environment cannot be rolled out with is refused by whoever rolls it out so, before any work, and by nobody
else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.cli.compare import CompareOptions, make_plan, read_arms
from retcon.cli.dry_run import plan_evaluation, plan_rl
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, TaskSection
from retcon.core.errors import RecipeError, TaskWarning
from retcon.evaluate.audit import AuditJob, Size, run_audit
from retcon.evaluate.difficulty import run_difficulty
from retcon.evaluate.runner import run_evaluation
from retcon.train.rl import run_rl
from training import Ones, make_base

pytestmark = pytest.mark.torch


class Locked:
    """Counts, and cannot be copied: there is no way back to where a call failed."""

    def reset(self, seed: int = 0, **row: Any) -> str:
        self.lock, self.value = threading.Lock(), 0
        return f"Count to {seed}."

    def add(self, amount: int) -> int:
        """Adds to the counter.

        Args:
            amount: how much
        """
        self.value += amount
        return self.value

    def get_reward(self) -> float:
        return float(self.value)


KEYS = (
    "task.kind=trl", f"task.environment={__name__}:Locked", "task.seeds=9", "rollout.tools=[]",
    "model.style=hermes", "compute.device=cpu",
)  # fmt: skip
REPAIRED, MEASURED_REPAIRED = ("repair.kind=saar", "evaluate.repair=none"), ("repair.kind=none", "evaluate.repair=saar")
SHORT = ("rollout.max_tokens=400", "rollout.lookahead_tokens=32", "rollout.max_turns=1", "sandbox.output_chars=99")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base", positions=1024)


def recipe_of(base: Path, *keys: str) -> Recipe:
    return load_recipe(None, [*KEYS, *SHORT, f'model.path="{base}"', *keys])


Work = Callable[[Recipe, Path, Path], object]
ROLLED_OUT: dict[str, tuple[Work, tuple[str, ...]]] = {
    "train": (run_rl, REPAIRED),
    "train --dry-run": (plan_rl, REPAIRED),
    "eval": (run_evaluation, MEASURED_REPAIRED),
    "eval --dry-run": (plan_evaluation, MEASURED_REPAIRED),
}


@pytest.mark.parametrize(("work", "repaired"), ROLLED_OUT.values(), ids=ROLLED_OUT)
def test_what_rolls_out_with_a_repair_refuses_it_before_any_work(
    work: Work, repaired: tuple[str, ...], base: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match="cannot be gone back to"):
        work(recipe_of(base, *repaired), base, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class Unrepaired(TaskSection):
    """`task.kind = "test_refused_rollouts:Unrepaired"`: tasks without tools of their own, for rollouts as they are."""

    own_lengths: ClassVar[bool] = True

    def build(self, count_tokens: object = None) -> Ones:
        return Ones()

    def check_rollouts(self, recipe: Recipe) -> None:
        if recipe.repair.kind != "none":
            raise RecipeError(f"nothing is repaired here by {recipe.repair.kind}")


@pytest.mark.parametrize("repair", ["saar", "none"])
@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (KEYS, "cannot be rebuilt for replays"),
        ((f"task.kind={__name__}:Unrepaired", "compute.device=cpu"), "nothing is repaired here by saar"),
    ],
    ids=["an environment", "other tasks"],
)
def test_an_audit_which_purifies_whatever_the_recipe_repairs_by_refuses_it_before_any_work(
    keys: tuple[str, ...], says: str, repair: str, base: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(None, [*keys, *SHORT, f"repair.kind={repair}", f'model.path="{base}"'])
    with pytest.raises(RecipeError, match=says):
        run_audit(AuditJob(recipe, base, tmp_path / "out", Size(), lambda *_: []))
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_whose_arms_repair_nothing_goes_without_its_repaired_evaluation(
    base: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("[rl]\nsteps = 2\n")
    second.write_text("[rl]\nsteps = 2\nlr = 1e-3\n")
    arms = read_arms([str(first), str(second), *KEYS])
    with pytest.warns(TaskWarning, match="no arm is measured with purification on: .* cannot be gone back to"):
        plan = make_plan(CompareOptions(tmp_path / "out", 1, "rollouts", start=str(base)), arms)
    assert [target.makes.parent.name for target in plan.trained["first", 0][1:]] == ["eval", "eval-faults"]


def test_a_difficulty_pass_which_repairs_nothing_measures(base: Path, tmp_path: Path) -> None:
    recipe = recipe_of(base, *REPAIRED, "strategy.kind=arpo", "evaluate.repair=saar")
    assert len(run_difficulty(recipe, base, tmp_path / "rates.jsonl", tasks=2, rollouts=1)) == 2


def test_branches_are_refused_in_training_and_an_evaluation_which_has_none_measures(base: Path, tmp_path: Path) -> None:
    """The recipe is that of the model, which may have been trained on other tasks."""
    recipe = recipe_of(base, "strategy.kind=arpo", "evaluate.problems=1", "evaluate.samples=1", "evaluate.top_p=1.0")
    for work in (run_rl, plan_rl):
        with pytest.raises(RecipeError, match=r"strategy\.kind = 'arpo': .*cannot branch with it"):
            work(recipe, base, tmp_path / "out")
    assert run_evaluation(recipe, base, tmp_path / "eval").is_file()


def test_a_harness_which_would_leave_the_state_as_it_began_is_refused(base: Path, tmp_path: Path) -> None:
    recipe = recipe_of(base, "repair.kind=none", "rollout.harness=math:gcd")
    for work in (run_rl, run_evaluation):
        with pytest.raises(RecipeError, match=r"rollout\.harness: the tools of task.kind = 'trl' begin with a task"):
            work(recipe, base, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
