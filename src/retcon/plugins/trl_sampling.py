"""Sampling settings of TRL's trainer: rollouts are sampled by the recipe, and TRL's loss goes by some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retcon.config.schema import RolloutSection
from retcon.core.errors import RecipeError

OFF = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""TRL's defaults of what [rollout] has, too; a None is one."""
UNKNOWN: Mapping[str, object] = {"repetition_penalty": 1.0, "generation_kwargs": {}}
"""TRL's defaults of what the rollouts do not have."""


def refuse_other_sampling(rollout: RolloutSection, args: Any) -> None:
    """Raises RecipeError where GRPOConfig (`args`) asks for rollouts that the recipe's are not.

    TRL's loss divides logits by its own temperature. The log-probs that it is given are of temperature 1, which it
    compares with its own only for importance weights of vLLM and in its off-policy mask.
    """
    if args.temperature != rollout.temperature:
        raise RecipeError(
            f"GRPOConfig's temperature = {args.temperature} goes into TRL's loss, and the rollouts are sampled with "
            f"rollout.temperature = {rollout.temperature}: set both alike"
        )
    for key, off in OFF.items():
        if (asked := getattr(args, key, None) or off) not in (off, own := getattr(rollout, key)):
            raise RecipeError(
                f"GRPOConfig's {key} = {asked}, and the rollouts are sampled with rollout.{key} = {own}: set that"
            )
    for key, nothing in UNKNOWN.items():
        if (told := getattr(args, key, None) or nothing) != nothing:
            raise RecipeError(f"GRPOConfig's {key} = {told}: the recipe samples the rollouts, without; leave it out")
    compares = getattr(args, "off_policy_mask_threshold", None) is not None or (
        args.use_vllm and args.vllm_importance_sampling_correction
    )
    if compares and rollout.temperature != 1:
        raise RecipeError(
            f"rollout.temperature = {rollout.temperature}: log-probs of the rollouts are of temperature 1, and TRL "
            "would compare them with others; leave out off_policy_mask_threshold and use_vllm, or set both "
            "temperatures to 1"
        )
