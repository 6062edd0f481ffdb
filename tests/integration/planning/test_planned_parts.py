"""The parts of a plan: which of them are taken at once, what they are counted by, and when nothing has to fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retcon.config.load import load_recipe
from retcon.config.schema import EngineSection
from retcon.core.errors import ComputeWarning, EngineError, RecipeError
from retcon.engine.local.engine import LocalEngine
from retcon.models.loading import load_model
from retcon.models.placing import place_training
from retcon.planning import needs as module
from retcon.planning.needs import MIB, Needs, Part, check_fits, needs_of
from training import make_base

pytestmark = pytest.mark.torch


CPU = "compute.device=cpu"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", positions=256)


def needs(rollouts: int, *update: int, disk: int = 0) -> Needs:
    """Of a run that always has 100 MiB."""
    parts = (
        Part("weights", 100 * MIB, "always"),
        Part("packed weights", rollouts * MIB, "rollouts"),
        *(Part(name, size * MIB, "update") for name, size in zip(("gradients", "cast weights"), update, strict=False)),
    )
    return Needs(parts, disk, 0, 1, 1, "cpu")


def parts_of(base: Path, work: str, *overrides: str, longest: int | None = None) -> dict[str, int]:
    recipe = load_recipe(None, [CPU, *overrides])
    found = needs_of(work, recipe, base, place_training(recipe, base), longest=longest)  # type: ignore[arg-type]
    return {part.name: part.bytes for part in found.memory}


def test_rollouts_and_updates_take_turns() -> None:
    assert [needs(*phases).peak // MIB for phases in ((300, 200), (200, 300), (0, 50))] == [400, 400, 150]


def test_what_only_some_recipes_take_is_planned_for_these_alone(base: Path) -> None:
    plain = parts_of(base, "rl")
    assert not {"entropies", "cast weights", "weights of rollouts", "reference"} & plain.keys()
    entropies = parts_of(base, "rl", "rl.entropy_coefficient=0.01")
    assert entropies["entropies"] == entropies["logits"] == plain["logits"]
    assert "entropies" not in parts_of(base, "sft", "rl.entropy_coefficient=0.01")
    cast = parts_of(base, "rl", "compute.dtype=bfloat16")
    assert 2 * cast["cast weights"] == plain["weights"], "of the tied embedding too"
    assert "gradients" not in parts_of(base, "eval")
    assert "KV blocks" not in parts_of(base, "sft")


@pytest.mark.parametrize(("mib", "always", "rollouts"), [(3, 3, 0), (10, 4, 6)])
def test_keys_and_values_that_may_stay_on_a_gpu_stand_beside_updates(
    base: Path, monkeypatch: pytest.MonkeyPatch, mib: int, always: int, rollouts: int
) -> None:
    """Of a budget that is larger than what may stay, so much may be taken and stay."""
    monkeypatch.setattr(module, "free_on", lambda _: 1000 * MIB)
    monkeypatch.setattr(module, "resting_bytes", lambda _: 4 * MIB)
    recipe = load_recipe(None, [CPU, f"compute.kv_memory_mb={mib}"])
    place = replace(place_training(recipe, base), device="cuda:0")
    for work, found in (("rl", (always, rollouts)), ("eval", (0, mib))):
        parts = [p for p in needs_of(work, recipe, base, place).memory if p.name == "KV blocks"]  # type: ignore[arg-type]
        assert tuple(sum(p.bytes for p in parts if p.phase == when) // MIB for when in ("always", "rollouts")) == found
        assert all(p.bytes for p in parts)


class OwnEngine(EngineSection):
    """One of the user's own, which may keep nothing of a rollout."""

    def build(self, setup: object) -> None:
        """No test asks for one."""


@pytest.mark.parametrize("rollouts", ["float32", "bfloat16"])
def test_keys_and_values_that_hold_no_rollout_are_refused_with_the_least_that_do(tmp_path: Path, rollouts: str) -> None:
    """The engine takes that and refuses one less."""
    base = make_base(tmp_path / "base", positions=70_000)
    long = ("rollout.max_tokens=50000", "rollout.lookahead_tokens=20000", f"compute.rollout_dtype={rollouts}")
    with pytest.raises(RecipeError, match=r"^compute\.kv_memory_mb = 1: one rollout of 70,000 tokens .* needs") as told:
        parts_of(base, "rl", *long, "compute.kv_memory_mb=1")
    least = int(str(told.value).partition("; set ")[2].split()[0])
    for work in ("rl", "eval"):
        assert parts_of(base, work, *long, f"compute.kv_memory_mb={least}")["KV blocks"] == least * MIB
        with pytest.raises(RecipeError, match=rf"{least - 1}: .*; set {least} or more, 0 for what is free"):
            parts_of(base, work, *long, f"compute.kv_memory_mb={least - 1}")
    assert "KV blocks" in parts_of(base, "rl", *long, "compute.kv_memory_mb=1", f"engine.kind={__name__}:OwnEngine")
    model = load_model(base, rollouts)
    LocalEngine(model, max_len=70_000, max_requests=1, kv_memory_mb=least)
    with pytest.raises(EngineError, match=rf"needs {least} MiB"):
        LocalEngine(model, max_len=70_000, max_requests=1, kv_memory_mb=least - 1)


# What a plan says that rollouts take, against what the engine and the run folder take.


SMALL = (
    "rl.prompts=2", "rl.group=4", "rollout.max_tokens=200", "rollout.lookahead_tokens=40", "compute.device=cpu",
    "rl.steps=7",
)  # fmt: skip


def test_a_disk_that_long_rollouts_alone_would_fill_is_warned_of(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(None, [*SMALL, "rl.group=100"])
    needs = needs_of("rl", recipe, base, place_training(recipe, base))
    usage = module.shutil.disk_usage(tmp_path)._replace(free=needs.disk + 1000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    with pytest.warns(ComputeWarning, match=r"out could take \d+ MiB of disk, \d+ MiB of them for rollouts, and"):
        check_fits(needs, tmp_path / "out")
