"""Sampling settings of TRL's trainer: rollouts are sampled by the recipe, and TRL's loss goes by some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retcon.chat.chat import Chat
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


def refuse_unseen_ends(chat: Chat, trainer: Any) -> None:
    """Raises RecipeError where TRL, which masks completions that do not end with an id of its own, would mask all."""
    end, known = chat.stop_ids[0], (*trainer.eos_token_ids, trainer.processing_class.pad_token_id)
    if end not in known:
        raise RecipeError(
            f"GRPOConfig's mask_truncated_completions = True: turns end with {chat.family.ends[0]!r}, and TRL takes "
            "what does not end with the model's own end of text for truncated, so all: leave it out, or set "
            "rl.truncated=mask in its place"
        )
