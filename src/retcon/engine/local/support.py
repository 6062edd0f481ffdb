"""Which models the slotted cache can hold: refused by name before any work, not wrong afterwards."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from retcon.core.errors import EngineError
from retcon.models.loading import positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEEDED = ("position_ids", "logits_to_keep")
ATTENTION = ("sdpa", "eager")


def check_model(model: PreTrainedModel, max_len: int) -> None:
    """Raises EngineError for a model that keeps more, or other things, than keys and values of every position.

    A sliding window of max_len or more is full attention, and is accepted.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    if getattr(model, "_is_stateful", False):
        raise EngineError(f"{name} keeps a recurrent state, which cannot be cropped on a rollback; use a model of "
                          "attention layers alone")  # fmt: skip
    if model.config.is_encoder_decoder:
        raise EngineError(f"{name} is an encoder-decoder; the local engine serves decoder-only models")
    limit = positions(model.config)
    if limit is not None and max_len > limit:
        raise EngineError(
            f"max_len {max_len} is more than the {limit} positions of {name}; lower "
            "max_len (in a recipe: rollout.max_tokens + rollout.lookahead_tokens)"
        )
    _check_layers(name, config, max_len)
    _check_rotations(name, config, max_len)
    if getattr(config, "num_kv_shared_layers", 0):
        raise EngineError(f"{name} shares keys and values between layers, which the slotted cache does not")
    accepted = inspect.signature(model.forward).parameters
    missing = [n for n in NEEDED if n not in accepted]
    if missing or getattr(config, "alibi", False):
        why = f"does not take {', '.join(missing)}" if missing else "derives positions from the mask (alibi)"
        raise EngineError(f"{name} {why}; the local engine needs explicit positions")
    attention = config._attn_implementation
    if attention not in ATTENTION:
        raise EngineError(f"{name} runs {attention!r} attention, which takes no prepared mask; load it with "
                          f"attn_implementation={' or '.join(map(repr, ATTENTION))}")  # fmt: skip


def _check_layers(name: str, config: object, max_len: int) -> None:
    window = getattr(config, "sliding_window", None)
    default = "sliding_attention" if window else "full_attention"
    for kind in dict.fromkeys(getattr(config, "layer_types", None) or [default]):
        if kind == "full_attention" or (kind == "sliding_attention" and window and max_len <= window):
            continue
        if kind == "sliding_attention":
            raise EngineError(f"{name} attends over a sliding window of {window} tokens, less than max_len {max_len}; "
                              f"lower max_len to {window}")  # fmt: skip
        raise EngineError(f"{name} has {kind} layers, whose state the slotted cache cannot hold")


def _check_rotations(name: str, config: object, max_len: int) -> None:
    """Raises EngineError where how far a position is rotated depends on the longest text of a forward: what is kept
    was rotated in other company."""
    told = getattr(config, "rope_parameters", None) or {}
    for rope in (told, *(one for one in told.values() if isinstance(one, dict))):  # some have one of each kind of layer
        trained = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if rope.get("rope_type") == "longrope" and trained and max_len > trained:
            raise EngineError(f"{name} rotates all positions otherwise in texts of more than {trained} tokens "
                              f"(longrope), and max_len is {max_len}; lower max_len to {trained} (in a recipe: "
                              "rollout.max_tokens + rollout.lookahead_tokens)")  # fmt: skip
