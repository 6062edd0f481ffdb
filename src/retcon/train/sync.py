"""Weights for rollouts, kept equal to the trained ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from retcon.engine.types import Adapters
from retcon.models.lora import Adapter, merged_weight

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EngineWeights:
    """An engine's `model`, which `sync` updates from the trained one.

    It is the trained model itself if that has weights of `dtype` and no adapters, else a copy without adapters.
    Decoding thus never runs adapters, which costs a copy of every weight that they change; other weights of that dtype
    are shared. adapters: those merged into it, for an engine elsewhere that takes them as such.
    """

    def __init__(self, trained: PreTrainedModel, dtype: torch.dtype, adapter: Adapter | None = None) -> None:
        self.model = trained
        self.adapters = None
        # By id of a trained model's parameter: returns the value of the engine's copy.
        sources: dict[int, Callable[[], Tensor]] = {id(p): p.detach for p in trained.parameters() if p.dtype != dtype}
        if adapter is not None:
            targets = sorted({name.rpartition(".")[2] for name, _, _ in adapter.layers()})
            self.adapters = Adapters(adapter.rank, tuple(targets), adapter.save)
            sources = {id(weight): partial(merged_weight, layer, weight) for _, layer, weight in adapter.layers()}
        self._pairs: list[tuple[Tensor, Callable[[], Tensor]]] = []
        if not sources:
            return
        # The copy of each parameter: a tied one is copied once, as it is one parameter.
        memo: dict[int, Any] = {
            id(p): nn.Parameter(p.detach().to(dtype, copy=id(p) in sources), requires_grad=False)
            for p in trained.parameters()
        }
        self._pairs = [(memo[key], source) for key, source in sources.items()]
        self.model = copy.deepcopy(trained, memo) if adapter is None else adapter.plain(memo)
        self.model.eval()
        self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Copy the trained weights over, in place. The engine's cache under the old ones is then useless."""
        for target, source in self._pairs:
            target.copy_(source())
