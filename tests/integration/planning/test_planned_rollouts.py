"""What a plan says that rollouts take, against what the engine and the run folder take."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from playing import call, play
from retcon.build import build_limits, build_repair
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import ComputeWarning
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.loading import load_model
from retcon.models.placing import place_training
from retcon.planning import needs as module
from retcon.planning.needs import MIB, needs_of, refuse_unfit
from retcon.store.jsonl import line_of
from training import make_base

pytestmark = pytest.mark.torch
SMALL = (
    "rl.prompts=2", "rl.group=4", "rollout.max_tokens=200", "rollout.lookahead_tokens=40", "compute.device=cpu",
    "rl.steps=7",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=256)


def planned(base: Path, work: str, *overrides: str) -> tuple[Recipe, int]:
    """The recipe, and the bytes of keys and values in its plan."""
    recipe = load_recipe(None, [*SMALL, *overrides])
    parts = needs_of(work, recipe, base, place_training(recipe, base)).memory
    return recipe, next(part.bytes for part in parts if part.name == "KV blocks")


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_engine_takes_no_more_for_keys_and_values_than_is_planned(base: Path, staleness: int) -> None:
    recipe, plan = planned(base, "rl", f"rl.max_staleness={staleness}")
    whole = recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens
    count = 8 * (1 + staleness)
    engine = LocalEngine(load_model(base), max_len=whole, max_requests=count)

    async def rollout(number: int) -> None:
        ids = [1 + number] * 20
        while len(ids) < whole:  # turn by turn, with room that each outgrows
            await engine.generate(str(number), ids, SamplingParams(max_tokens=1, seed=number))
            ids += [3] * 50

    async def rollouts() -> None:
        await asyncio.gather(*map(rollout, range(count)))

    asyncio.run(rollouts())
    assert plan == engine.stats.kv_budget
    assert plan / 3 < engine.stats.kv_peak <= plan


def test_what_is_free_and_what_the_recipe_says_bound_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(base, "rl", "rl.group=1000")[1] == planned(base, "rl", "rl.group=128")[1]  # 256 side by side
    assert planned(base, "eval")[1] == planned(base, "rl", "rl.group=128")[1]
    assert planned(base, "rl", "compute.kv_memory_mb=3")[1] == 3 * MIB
    monkeypatch.setattr(module, "free_on", lambda _: 4 * MIB)
    assert planned(base, "rl", "rl.group=128")[1] == MIB


@pytest.mark.parametrize("kind", ["none", "saar"])
def test_long_rollouts_take_no_more_of_the_disk_than_is_planned(base: Path, kind: str) -> None:
    recipe = load_recipe(None, [*SMALL, f"repair.kind={kind}", "rollout.max_turns=2", "rl.steps=1"])
    wrong = "print(" + "9 * " * 9 + "valu)"
    p = play([call(wrong)] * 9, {wrong: "error"}, repair=build_repair(recipe), limits=build_limits(recipe))
    plan = needs_of("rl", recipe, base, place_training(recipe, base)).rollouts / 8
    assert len(p.turns[0].abandoned) == (3 if kind == "saar" else 0)
    assert plan / 4 < len(line_of(p.trajectory)) <= plan


def test_what_is_written_of_rollouts_grows_with_how_many_are_made(base: Path) -> None:
    def planned(work: str, *overrides: str) -> int:
        recipe = load_recipe(None, [*SMALL, *overrides])
        return needs_of(work, recipe, base, place_training(recipe, base)).rollouts

    assert planned("rl", "rl.steps=100") == 6 * planned("rl")  # of every tenth step, the first and the last
    assert planned("rl", "rl.steps=1") == planned("rl") / 2
    assert planned("rl", "select.dynamic=true", "select.max_extra=1.5") == 2.5 * planned("rl")
    assert planned("rl", "repair.kind=saar") == planned("rl") * (200 + 3 * 40) / 200
    assert planned("eval", "evaluate.problems=2") == 2 * planned("eval", "evaluate.problems=1")
    assert planned("eval", "evaluate.repair=saar") == planned("eval") * (200 + 3 * 40) / 200
    assert planned("sft") == 0


def test_a_disk_that_long_rollouts_alone_would_fill_is_warned_of(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(None, [*SMALL, "rl.group=100"])
    needs = needs_of("rl", recipe, base, place_training(recipe, base))
    usage = module.shutil.disk_usage(tmp_path)._replace(free=needs.disk + 1000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    with pytest.warns(ComputeWarning, match=r"out could take \d+ MiB of disk, \d+ MiB of them for rollouts, and"):
        refuse_unfit(needs, tmp_path / "out")
