"""The parts of a plan: which of them are taken at once, what they are counted by, and when nothing has to fit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

from retcon.config.load import load_recipe
from retcon.config.schema import EngineSection, LoraSection
from retcon.core.errors import ComputeWarning, EngineError, RecipeError
from retcon.engine.local.engine import LocalEngine
from retcon.engine.local.lean import copied
from retcon.models.loading import empty_model, load_config, load_model
from retcon.models.lora import Adapter
from retcon.models.placing import place_training
from retcon.planning import needs as module
from retcon.planning.needs import MIB, Needs, Part, Work, count_parameters, needs_of, refuse_unfit
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


def test_what_is_named_is_the_largest_of_what_is_there_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make something else smaller would not help."""
    monkeypatch.setattr(module, "available_memory", lambda: 350 * MIB)
    with pytest.raises(RecipeError, match=r"takes up to 400 MiB .* most of it is gradients \(160 MiB.*lora\.rank = 16"):
        refuse_unfit(needs(200, 160, 140), tmp_path / "out")
    with pytest.raises(RecipeError, match=r"most of it is packed weights \(300 MiB.*Take a smaller model"):
        refuse_unfit(needs(300, 200), tmp_path / "out")
    refuse_unfit(needs(250, 250), tmp_path / "out")


def test_a_run_that_is_finished_fits_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: MIB)
    (tmp_path / "out/final").mkdir(parents=True)
    refuse_unfit(needs(1, 1, disk=2**60), tmp_path / "out")
    with pytest.raises(RecipeError, match="of memory"):
        refuse_unfit(needs(1, 1), tmp_path / "new")


def test_of_several_cards_that_which_computes_has_to_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"cuda:0": 8, "cuda:1": 350}
    monkeypatch.setattr(module.torch.cuda, "mem_get_info", lambda device="cuda:0": (free[str(device)] * MIB, 2**40))
    monkeypatch.setattr(module, "available_memory", lambda: 0)
    refuse_unfit(replace(needs(200, 100), device="cuda:1"), tmp_path / "out")
    with pytest.raises(RecipeError, match="takes up to 500 MiB of memory and 350 MiB are free on cuda:1"):
        refuse_unfit(replace(needs(400, 100), device="cuda:1"), tmp_path / "out")


def test_where_the_memory_is_not_known_only_the_disk_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ComputeWarning)
        refuse_unfit(needs(2**30, 1), tmp_path / "out")
    with pytest.raises(RecipeError, match="of disk"):
        refuse_unfit(needs(1, 1, disk=2**60), tmp_path / "deep/er/out")


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("targets", [["all-linear"], ["q_proj", "o_proj"]], ids="+".join)
def test_adapters_have_as_many_parameters_as_are_planned(kind: str, targets: list[str]) -> None:
    config = AutoConfig.for_model(
        kind, vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, tie_word_embeddings=False, moe_intermediate_size=24,
    )  # fmt: skip
    section = LoraSection.model_validate({"rank": 3, "targets": targets})
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForCausalLM.from_config(config)
    whole = sum(p.numel() for p in model.parameters())
    Adapter(model, section, seed=0)
    assert count_parameters(config, section) == (whole, sum(p.numel() for p in model.parameters() if p.requires_grad))
    assert count_parameters(config, LoraSection()) == (whole, whole)


def test_a_sample_that_is_longer_than_a_micro_batch_is_planned_whole(base: Path) -> None:
    plain = parts_of(base, "sft", "compute.micro_batch_tokens=64")
    assert parts_of(base, "sft", "compute.micro_batch_tokens=64", longest=64) == plain
    longer = parts_of(base, "sft", "compute.micro_batch_tokens=64", longest=128)
    assert longer["activations"] == 2 * plain["activations"]
    rollouts = parts_of(base, "rl", "compute.micro_batch_tokens=64", "rollout.max_tokens=192")
    assert rollouts["activations"] == 3 * plain["activations"]


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
    monkeypatch.setattr(module, "kept_at_rest", lambda _: 4 * MIB)
    recipe = load_recipe(None, [CPU, f"compute.kv_memory_mb={mib}"])
    place = replace(place_training(recipe, base), device="cuda:0")
    for work, found in (("rl", (always, rollouts)), ("eval", (0, mib))):
        parts = [p for p in needs_of(work, recipe, base, place).memory if p.name == "KV blocks"]  # type: ignore[arg-type]
        assert tuple(sum(p.bytes for p in parts if p.phase == when) // MIB for when in ("always", "rollouts")) == found
        assert all(p.bytes for p in parts)


def test_what_decoding_has_on_a_gpu_is_planned(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights side by side, what graphs keep, which double their memory, and what is in float32 while ids are drawn."""
    monkeypatch.setattr(module, "free_on", lambda _: 1000 * MIB)
    monkeypatch.setattr(module, "kept_at_rest", lambda _: 4 * MIB)
    recipe = load_recipe(None, [CPU, "rl.prompts=3", "rl.group=8"])
    place = replace(place_training(recipe, base), device="cuda:0", rollout_dtype="bfloat16")
    config = load_config(base)
    vocabulary = config.vocab_size
    heads = config.head_dim * (config.num_attention_heads + 2 * config.num_key_value_heads)
    beside = config.num_hidden_layers * config.hidden_size * (heads + 2 * config.intermediate_size)
    cases: list[tuple[Work, int, int]] = [("rl", 24, 32), ("eval", 256, 256)]
    for work, rows, room in cases:
        found = {part.name: part for part in needs_of(work, recipe, base, place).memory}
        weights, graphs, rollouts = (
            found[name] for name in ("weights side by side", "states of graphs", "logits of rollouts")
        )
        assert (weights.bytes, weights.phase) == (2 * beside, "always")
        assert (graphs.bytes, graphs.phase) == (4 * 2 * room * config.hidden_size, "always")
        assert (rollouts.bytes, rollouts.phase) == ((2 * 2 + 4 * 4) * rows * vocabulary, "rollouts")
    here = parts_of(base, "rl", "rl.prompts=3", "rl.group=8")
    assert copied(empty_model(GPT2Config(n_layer=1))) == 0
    assert not {"weights side by side", "states of graphs"} & here.keys()
    assert here["logits of rollouts"] == 2 * 4 * 24 * vocabulary


def test_of_servers_no_keys_and_values_are_planned_here(base: Path) -> None:
    """A training with vLLM was refused for want of memory that its servers have."""
    servers = parts_of(base, "rl", "engine.kind=vllm", "engine.url=http://127.0.0.1:9")
    here = parts_of(base, "rl")
    assert here.keys() - servers.keys() == {"KV blocks", "packed weights", "logits of rollouts"}
    assert servers.items() <= here.items()


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
