"""What a plan says that rollouts take, against what the engine and the run folder take."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.engine.local.engine import LocalEngine
from retcon.engine.types import SamplingParams
from retcon.models.loading import load_model
from retcon.models.placing import place_training
from retcon.planning import needs as module
from retcon.planning.needs import MIB, needs_of
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
    monkeypatch.setattr(module, "_free", lambda _: 4 * MIB)
    assert planned(base, "rl", "rl.group=128")[1] == MIB
