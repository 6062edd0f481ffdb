"""Settings of verl that rollouts follow, and those that cannot be combined; the environment of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retcon.build import build_limits, with_evaluation_repair
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.engine.types import SamplingParams
from retcon.plugins.losses import check_loss_supported
from retcon.rollout.context import RolloutLimits
from retcon.rollout.lengths import open_keys

SECTION = "retcon"
"""Of verl's configuration: `recipe`, a file or a name, and `overrides`, as those of `retcon train`."""
KEYS = ("recipe", "overrides")
ROLLOUT = "actor_rollout_ref.rollout"
SAMPLER, SAMPLER_PATH = "RetconSampler", "pkg://retcon.plugins.verl.sampler"


def recipe_of(section: Mapping[str, Any] | None) -> Recipe:
    """Load the recipe that verl's section `retcon` names. Raises RecipeError."""
    if not section or not section.get("recipe"):
        raise RecipeError(f"verl's configuration names no recipe: set {SECTION}.recipe to a file or a shipped name")
    if unknown := sorted(set(section) - set(KEYS)):
        raise RecipeError(f"unknown key {SECTION}.{unknown[0]}; expected one of {', '.join(KEYS)}")
    recipe = load_recipe(str(section["recipe"]), [str(one) for one in section.get("overrides") or ()])
    if recipe.stages:
        raise RecipeError(f"{section['recipe']} has stages, and verl's trainer has none: name a recipe of one of them")
    return recipe


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token limits of verl: prompt, response, and servers' context, None for the model's own."""

    prompt: int
    response: int
    server: int | None = None

    @classmethod
    def of(cls, config: Any) -> Lengths:
        """Read them from verl's configuration."""
        rollout = config.actor_rollout_ref.rollout
        return cls(rollout.prompt_length, rollout.response_length, rollout.get("max_model_len"))

    def whole(self, recipe: Recipe) -> int:
        """Return the most tokens of a trajectory: the recipe's limit, if set, within verl's."""
        most = self.prompt + self.response
        return most if "rollout.max_tokens" in open_keys(recipe) else min(recipe.rollout.max_tokens, most)

    def limits(self, recipe: Recipe, prompt: int) -> RolloutLimits:
        """Return the limits of a rollout for the prompt's length."""
        most = min(self.whole(recipe), prompt + self.response)
        return replace(build_limits(recipe), max_tokens=most).after(prompt)


def sampling_of(params: Mapping[str, Any], recipe: Recipe, most: int) -> SamplingParams:
    """Return verl's sampling parameters with the recipe's min_p, which verl lacks. most: tokens of a turn
    (`Lengths.whole`)."""
    return SamplingParams(
        temperature=float(params["temperature"]),
        top_p=float(params["top_p"]),
        top_k=max(0, int(params["top_k"])),  # verl's -1 is off
        min_p=recipe.rollout.min_p,
        max_tokens=most,
    )


def check_compatible(config: Any, recipe: Recipe) -> None:
    """Raise RecipeError where verl's configuration contradicts the recipe.

    A spliced token was sampled with a failure in view and stands in a history without it, so the log-prob that the
    server gave is not the token's log-prob there. verl computes the policy's log-probs on the purified sequence, and
    only those may form a ratio. verl cannot mask the server's ones out of a bypass or an importance correction, so
    both are refused together with repairs.
    """
    rollout, purified = config.actor_rollout_ref.rollout, recipe.repair.kind != "none"
    if not config.trainer.get("use_v1", True):
        raise RecipeError("trainer.use_v1 = false: verl's older trainer is not supported; set it to true")
    if rollout.name != "vllm":
        raise RecipeError(f"{ROLLOUT}.name = '{rollout.name}': only vLLM's servers are supported; set it to vllm")
    if recipe.rollout.harness:
        raise RecipeError("rollout.harness: in verl rollouts are made by its agent loops: leave it out")
    correction = config.algorithm.get("rollout_correction") or {}
    named = f"with repair.kind = '{recipe.repair.kind}' spliced tokens have no log-prob by which they were sampled"
    for key in ("bypass_mode", "rollout_is", "rollout_rs"):
        if purified and correction.get(key):
            raise RecipeError(
                f"algorithm.rollout_correction.{key} = {correction.get(key)}: {named}; leave it false or null, so that "
                "the policy's log-probs are computed on the purified sequence"
            )
    if purified and rollout.calculate_log_probs:
        raise RecipeError(f"{ROLLOUT}.calculate_log_probs = true: {named}; set it to false")
    check_loss_supported(recipe, "verl", credits=("root", "inherit"))
    if recipe.credit.kind == "inherit":
        if config.algorithm.get("adv_estimator") != "grpo":
            raise RecipeError(
                f"algorithm.adv_estimator = {config.algorithm.get('adv_estimator')}: only verl's grpo gives children "
                "their root's advantage; set it to grpo, or credit.kind=root"
            )
        if recipe.credit.weights != "node":
            raise RecipeError(
                f"credit.weights = {recipe.credit.weights}: in verl's loss a child weighs as a rollout does; set "
                "credit.weights=node, or credit.kind=root"
            )
    for one in (recipe, with_evaluation_repair(recipe)):  # while verl trains, and while it validates
        one.task.check_rollouts(one)
    if purified and recipe.repair.probes:
        raise RecipeError(f"repair.probes = {recipe.repair.probes}: verl rolls out the members of a group each by "
                          "itself, and none can wait for others; set it to 0")  # fmt: skip
    if recipe.strategy.branching:
        raise RecipeError(
            f"strategy.kind = '{recipe.strategy.kind}': verl rolls out each member of a group by itself: none can "
            "branch off another; set it to independent"
        )
    if recipe.lora.rank:
        raise RecipeError(f"lora.rank = {recipe.lora.rank}: verl makes the adapters; set lora.rank=0, and "
                          "actor_rollout_ref.model.lora_rank")  # fmt: skip
    if recipe.select.pass_rates:
        raise RecipeError(
            f"select.pass_rates = {recipe.select.pass_rates}: verl draws the rows of data.train_files, whatever their "
            "rates; make the file with `retcon data export --recipe`, which keeps only tasks within the bounds, "
            "and set the key to ''"
        )
    _refuse_selection(config, recipe)
    _refuse_lengths(Lengths.of(config), recipe, purified)


def _refuse_selection(config: Any, recipe: Recipe) -> None:
    sampler, count = config.trainer.v1.sampler, config.actor_rollout_ref.rollout.n
    custom = sampler.get("custom_sampler") or {}
    if custom.get("name") != SAMPLER:
        if recipe.select.kind != "none" or recipe.select.dynamic:
            raise RecipeError(
                f"select.kind = '{recipe.select.kind}', dynamic = {recipe.select.dynamic}: verl's own replay buffer "
                f"selects nothing; set trainer.v1.sampler.custom_sampler.name to {SAMPLER} and path to {SAMPLER_PATH}"
            )
        return
    made = recipe.select.made(recipe.rl.group)
    if count != made:
        raise RecipeError(
            f"{ROLLOUT}.n = {count}: the recipe rolls out {made} of a prompt, to train on rl.group = "
            f"{recipe.rl.group}; set it to {made}, or change rl.group"
        )
    if not sampler.get("sync_refill_failed_groups"):
        raise RecipeError(
            "trainer.v1.sampler.sync_refill_failed_groups = false: verl then draws prompts by the batch and "
            "cannot replace one that faults took; set it to true"
        )
    if (config.algorithm.get("filter_groups") or {}).get("enable"):
        raise RecipeError(f"algorithm.filter_groups.enable = true: {SAMPLER} does not read it; set it to false, and "
                          "select.dynamic of the recipe to true")  # fmt: skip


def _refuse_lengths(lengths: Lengths, recipe: Recipe, purified: bool) -> None:
    open_ = [key for key in open_keys(recipe) if key != "rollout.max_tokens"]
    needed = [key for key in open_ if purified or key != "rollout.lookahead_tokens"]
    if needed:
        raise RecipeError(f"{needed[0]} is not set, and cannot follow verl's prompts: set it in the recipe")
    whole = lengths.whole(recipe)
    most = whole + (recipe.rollout.lookahead_tokens if purified else 0)
    if lengths.server is not None and lengths.server < most:
        raise RecipeError(
            f"{ROLLOUT}.max_model_len = {lengths.server}: a rollout has up to {whole} tokens and a lookahead "
            f"{most - whole} more; set it to {most} or more"
        )
    if recipe.rl.overlong_buffer >= whole:
        raise RecipeError(f"rl.overlong_buffer = {recipe.rl.overlong_buffer} leaves nothing of {whole} tokens")


PREFIXES, SUFFIXES = ("RETCON_", "HF_", "WANDB_"), ("_API_KEY", "_TOKEN")
"""Names of the variables that rollouts, downloads and trackers read."""


def add_environment(runtime_env: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add a set-up function to a runtime_env. Ray's RAY_RUNTIME_ENV_HOOK; each process of the run calls it first.

    Ray hands a function over through its own store. Values in `runtime_env["env_vars"]` are on the command line of each
    worker while it starts, and in a log that every account on the machine can read.
    """
    folder = Path.cwd()
    values = {k: v for k, v in os.environ.items() if k.startswith(PREFIXES) or k.endswith(SUFFIXES)}

    def take_environment() -> None:
        os.environ.update(values)
        if folder.is_dir():  # else this node does not share it
            os.chdir(folder)

    return {**(runtime_env or {}), "worker_process_setup_hook": take_environment}
