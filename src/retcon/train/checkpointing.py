"""Activation checkpointing (arXiv 1604.06174) of a transformers model for the time of an update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@contextmanager
def checkpointed(model: PreTrainedModel) -> Iterator[None]:
    """Within, a layer keeps its input alone, and is computed again in the backward.

    transformers does so in layers that are in training mode, which an update of reinforcement learning is not, for the
    sake of dropout: the layers are put into that mode, and what is in them is not. Raises ValueError for a model that
    transformers cannot checkpoint.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no activation checkpointing: turn compute.checkpointing off")
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.training, layer.gradient_checkpointing = True, True
        vars(layer)["_gradient_checkpointing_func"] = partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training, layer.gradient_checkpointing = mode, False
