"""Activation checkpointing (arXiv 1604.06174) of a transformers model for the time of an update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@contextmanager
def checkpointed(model: PreTrainedModel) -> Iterator[None]:
    """Within, a layer keeps its input alone, and is computed again in the backward.

    transformers does so in layers that are in training mode, which an update of reinforcement learning is not, for the
    sake of dropout: the layers are put into that mode, and what is in them is not. Raises ValueError for a model that
    transformers cannot checkpoint, or whose layers themselves would then drop out.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no activation checkpointing: turn compute.checkpointing off")
    if any(not layer.training and _drops_out(layer) for layer in layers):
        raise ValueError(f"{type(model).__name__} has dropout that checkpointing would turn on: set it to 0 in the "
                         "model's config.json, or turn compute.checkpointing off")  # fmt: skip
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.training, layer.gradient_checkpointing = True, True
        vars(layer)["_gradient_checkpointing_func"] = partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training, layer.gradient_checkpointing = mode, False


def _drops_out(layer: nn.Module) -> bool:
    """Whether the layer has a rate of its own; modules in it keep their mode."""
    return any("dropout" in name and isinstance(value, float) and value > 0 for name, value in vars(layer).items())
