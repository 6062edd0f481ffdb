"""Keys and values that hold no rollout are refused before a model is loaded, and where nothing is left to do by
nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the [train] extra")

from retcon.build import build_chat, build_tasks
from retcon.cli.dry_run import plan_evaluation
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.evaluate.audit import AuditJob, Size, run_audit
from retcon.evaluate.difficulty import run_difficulty
from retcon.evaluate.result import score, write_result
from retcon.evaluate.runner import result_in, run_evaluation
from retcon.models.devices import Placement
from retcon.store import jsonl
from retcon.tasks.registry import problems_of
from retcon.train.demos.making import write_demonstrations
from retcon.train.sft import run_sft
from training import make_base, make_demonstrations

pytestmark = pytest.mark.torch
SMALL = (
    "rollout.max_tokens=700", "rollout.lookahead_tokens=60000", "sandbox.workers=1", "compute.device=cpu",
    "evaluate.problems=1", "evaluate.samples=1", "evaluate.top_p=1.0",
)  # fmt: skip
TOO_SMALL = "compute.kv_memory_mb=1"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=61_000)


def audited(recipe: Recipe, base: Path, out: Path, on_place: Callable[[Placement], None]) -> object:
    return run_audit(AuditJob(recipe, base, out, Size(1, 1, 1), lambda *_: []), on_place=on_place)


def demonstrated(recipe: Recipe, base: Path, out: Path, on_place: Callable[[Placement], None]) -> object:
    return write_demonstrations(recipe, build_chat(recipe, base), out, on_place=on_place)


def measured(recipe: Recipe, base: Path, out: Path, on_place: Callable[[Placement], None]) -> object:
    return run_difficulty(recipe, base, out, tasks=1, rollouts=1, on_place=on_place)


def sampled(recipe: Recipe, base: Path, out: Path, on_place: Callable[[Placement], None]) -> object:
    return run_sft(recipe, make_demonstrations(base, out.with_suffix(".jsonl")), out, on_place=on_place)


@pytest.mark.parametrize("work", [audited, demonstrated, measured, sampled])
def test_keys_and_values_that_hold_no_rollout_are_refused_before_the_model_is_loaded(
    work: Callable[..., object], base: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(None, [*SMALL, TOO_SMALL, "demos.kind=engine", "sft.samples=1", f"model.path={base}"])
    places: list[Placement] = []
    with pytest.raises(RecipeError, match=r"^compute\.kv_memory_mb = 1: one rollout of 60,700 tokens .* set 16 or"):
        work(recipe, base, tmp_path / "out", places.append)
    assert not places


def test_the_plan_of_an_evaluation_that_is_whole_says_so_and_refuses_nothing(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where another device computed it, a budget may have held what it does not hold here."""
    recipe, out = load_recipe(None, [*SMALL, TOO_SMALL]), tmp_path / "out"
    with pytest.raises(RecipeError, match=r"compute\.kv_memory_mb = 1: "):
        plan_evaluation(recipe, base, out)
    tasks = build_tasks(recipe, base)
    problems = problems_of(recipe, tasks)
    held = result_in(recipe, base, out, problems, tasks)
    out.mkdir()
    jsonl.write(out / "trajectories-t1.jsonl", [])
    measured = score([(one.id, []) for one in problems], temperature=1, top_p=1, cpu_s=0, wall_s=0)
    write_result(out / "result.json", held.with_setting("t1", measured))
    assert run_evaluation(recipe, base, out) == out / "result.json"
    capsys.readouterr()
    plan_evaluation(recipe, base, out)
    assert f"result: {out / 'result.json'}, which is whole" in capsys.readouterr().out
