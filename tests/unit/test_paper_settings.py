"""CLEANER's settings (arXiv 2601.15141): the recipes, and verl's configurations beside them, against one table."""

from __future__ import annotations

from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

from retcon.config.load import load_recipe

yaml = pytest.importorskip("yaml")
VERL = Path(__file__).parents[2] / "recipes/verl"
BASE_4B, BASE_7B = "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen2.5-7B-Instruct"
COLD_START = {"Gen-Verse/Qwen3-4B-RA-SFT": BASE_4B, "Gen-Verse/Qwen2.5-7B-RA-SFT": BASE_7B}
"""Section 5.1: what RL starts from, of which base, after the cold start on DemyAgent's transcripts."""
PAPER: list[tuple[str, object, str]] = [
    ("rl.prompts", 128, "data.train_batch_size"),  # section 5.1: rollout batch
    ("rl.group", 16, "actor_rollout_ref.rollout.n"),  # section 5.1
    ("rl.warmup_steps", 20, "actor_rollout_ref.actor.optim.lr_warmup_steps"),  # table 5
    ("rl.clip_low", 0.2, "actor_rollout_ref.actor.clip_ratio_low"),  # table 5
    ("rl.clip_high", 0.28, "actor_rollout_ref.actor.clip_ratio_high"),  # table 5
    ("task.max_prompt_tokens", 2560, "data.max_prompt_length"),  # table 5
    ("rollout.max_response_tokens", 20480, "data.max_response_length"),  # table 5
    ("compute.rollout_dtype", "float16", "actor_rollout_ref.rollout.dtype"),  # section 5.1
    ("evaluate.top_p", 0.6, "actor_rollout_ref.rollout.val_kwargs.top_p"),  # table 6; T = 1.0 below
    ("rollout.max_tokens", 2560 + 20480, ""),
    ("rollout.top_k", 0, ""),  # table 6: -1, off
    ("rl.algorithm", "dapo", ""),  # section 5.1
    ("rl.minibatches", 128 // 32, ""),  # section 5.1: updates of 32 prompts
    ("rl.overlong_buffer", 0, ""),  # table 5: outcome-only
    ("rl.correction", "none", ""),  # section 5.1: SAAR is the sole difference
    ("rl.kl", 0.0, ""),
    ("task.rewards", "signed", ""),  # table 5: -1, 1
    ("task.path", "Gen-Verse/Open-AgentRL-30K", ""),  # section 5.1
]
OF_EACH: dict[str, dict[str, object]] = {
    "cleaner-4b": {"rl.lr": 2e-6, "repair.probability": 1.0, "rl.steps": 250, "base": BASE_4B},
    "dapo-baseline": {"rl.lr": 2e-6, "repair.kind": "none", "rl.steps": 250, "base": BASE_4B},
    "cleaner-7b": {"rl.lr": 1e-6, "repair.probability": 0.7, "rl.steps": 15_991 // 128, "base": BASE_7B},
}
"""Table 5's learning rates, table 1's steps; of 7B an epoch of what its filter leaves."""
EVERY = [(name, key, value, at) for name in OF_EACH for key, value, at in PAPER]


@cache
def values(name: str) -> dict[str, Any]:
    recipe = load_recipe(name).model_dump()
    return {
        f"{section}.{key}": value
        for section, keys in recipe.items()
        if section != "stages"
        for key, value in keys.items()
    }


@cache
def in_verl(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((VERL / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def at(config: Any, path: str) -> Any:
    found = reduce(lambda inner, key: inner[key], path.split("."), config)
    return float(found) if isinstance(found, str) and "e-" in found else found  # YAML 1.1 reads 2e-6 as text


@pytest.mark.parametrize(("name", "key", "value", "path"), EVERY)
def test_a_setting_is_the_papers_in_the_recipe_and_in_verls_configuration(
    name: str, key: str, value: object, path: str
) -> None:
    assert values(name)[key] == value
    if path:
        assert at(in_verl(name), path) == value


@pytest.mark.parametrize("name", OF_EACH)
def test_what_differs_by_model_is_the_papers(name: str) -> None:
    own, found, verl = dict(OF_EACH[name]), values(name), in_verl(name)
    assert COLD_START[found["model.path"]] == own.pop("base")
    assert own == {key: found[key] for key in own}
    if name != "dapo-baseline":
        assert (found["repair.kind"], found["repair.attempts"], found["repair.gamma"]) == ("saar", 3, 0.5)
    assert at(verl, "actor_rollout_ref.model.path") == found["model.path"]
    assert at(verl, "actor_rollout_ref.actor.optim.lr") == found["rl.lr"]
    assert at(verl, "actor_rollout_ref.actor.ppo_mini_batch_size") == 32
    assert at(verl, "trainer.total_training_steps") == found["rl.steps"]
    assert at(verl, "retcon.recipe") == name
    assert at(verl, "actor_rollout_ref.rollout.val_kwargs") == {
        "n": 16, "temperature": 1.0, "top_p": 0.6, "do_sample": True,
    }  # fmt: skip


def test_only_the_7b_model_has_the_difficulty_filter() -> None:
    """Section 5.1: of 8 rollouts a query, neither none nor all right."""
    found = {name: values(name)["select.pass_rates"] for name in OF_EACH}
    assert {name for name, rates in found.items() if rates} == {"cleaner-7b"}
    low, high = (values("cleaner-7b")[f"select.{bound}_pass_rate"] for bound in ("min", "max"))
    assert [low <= right / 8 <= high for right in range(9)] == [False, *[True] * 7, False]


def test_verls_baseline_differs_from_verls_method_in_the_recipe_alone() -> None:
    method, baseline = in_verl("cleaner-4b"), in_verl("dapo-baseline")
    named = {"retcon": {**method["retcon"], "recipe": "dapo-baseline"}}
    trainer = {"trainer": {**method["trainer"], "experiment_name": "dapo-baseline"}}
    assert {**method, **named, **trainer} == baseline


def test_the_cold_start_is_demyagents_data_by_its_id_and_ends_where_the_published_one_does() -> None:
    recipe = load_recipe("demyagent-sft")
    about = recipe.demos.model_dump()
    assert (about["kind"], about["path"]) == ("transcripts", ("Gen-Verse/Open-AgentRL-SFT-3K",))
    assert recipe.model.path == BASE_4B
    assert recipe.sft.steps == 5 * (3000 // recipe.sft.batch)
