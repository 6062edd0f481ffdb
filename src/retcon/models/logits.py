"""What a model makes of its output layer's products before they are its logits, as far as training can follow it.

Training never has all logits, and computes those that it needs from the hidden states and the output layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from retcon.core.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

_MULTIPLIED: Mapping[str, str] = {
    "cohere": "logit_scale", "cohere2": "logit_scale", "cohere2_moe": "logit_scale",
    "falcon_h1": "lm_head_multiplier", "hyperclovax": "logits_scaling",
}  # fmt: skip
_DIVIDED: Mapping[str, str] = dict.fromkeys(
    ("granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"), "logits_scaling"
)
"""By `model_type`: the key of what logits are multiplied or divided by."""
TOLERANCE = 1e-4
"""How far logits may be off, relative to the largest: rounding, and no more."""
_IDS = 8


def factor(config: PretrainedConfig) -> float:
    """What the model multiplies its logits by; 1 of one that is not known to."""
    own = config.get_text_config()
    multiplied, divided = _MULTIPLIED.get(own.model_type, ""), _DIVIDED.get(own.model_type, "")
    return float(getattr(own, multiplied, 1.0) or 1.0) / float(getattr(own, divided, 1.0) or 1.0)


def before_head(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The hidden states, (N, d), such that the output layer alone makes the model's logits of them."""
    scale = factor(model.config)
    return hidden if scale == 1.0 else hidden * scale


@torch.no_grad()
def check_logits(model: PreTrainedModel, name: object) -> None:
    """Computes the logits of a few ids both ways. name: of the model, in messages.

    Raises CheckpointError where they differ, or are capped, which small logits do not show.
    """
    kind = type(model).__name__
    if cap := getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        raise CheckpointError(
            f"{name}: {kind} caps its logits (final_logit_softcapping = {cap}), and such models cannot be trained yet"
        )
    head: Any = model.get_output_embeddings()
    ids = torch.arange(_IDS, device=model.device)[None] % model.config.get_text_config().vocab_size
    expected: Tensor = model(input_ids=ids, use_cache=False).logits
    hidden: Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    apart = float((head(before_head(model, hidden)) - expected).abs().max() / expected.abs().max())
    if apart > TOLERANCE:
        known = ", ".join(sorted((*_MULTIPLIED, *_DIVIDED)))
        raise CheckpointError(
            f"{name}: the logits of {kind} are not those of its output layer (up to {apart:.2g} of the largest apart), "
            f"and such models cannot be trained yet; factors are known of {known}"
        )
