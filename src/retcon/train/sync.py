"""The weights that rollouts decode with, kept equal to those that are trained."""

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
    """`model` is for an engine: the trained model itself where that has weights of `dtype` and no adapters, else a copy
    without adapters, in which `sync` puts what training has made of the weights.

    Decoding thus never runs adapters, which costs a copy of every weight that they change; weights that do not change
    and have that dtype already are shared. adapters: those that are merged into it, for an engine elsewhere that takes
    them as they are.
    """

    def __init__(self, trained: PreTrainedModel, dtype: torch.dtype, adapter: Adapter | None = None) -> None:
        self.model = trained
        self.adapters = None
        # By id of a trained model's parameter: what gives the value that the engine's copy of it is to have.
        sources: dict[int, Callable[[], Tensor]] = {id(p): p.detach for p in trained.parameters() if p.dtype != dtype}
        if adapter is not None:
            targets = sorted({name.rpartition(".")[2] for name, _, _ in adapter.layers()})
            self.adapters = Adapters(adapter.rank, tuple(targets), adapter.save)
            sources = {id(weight): partial(merged_weight, layer, weight) for _, layer, weight in adapter.layers()}
        self._pairs: list[tuple[Tensor, Callable[[], Tensor]]] = []
        if not sources:
            return
        # What the copy has in place of each parameter: a tied one is copied once, as it is one parameter.
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
        """Copy the trained weights over, in place. What the engine has cached under the old ones is then of no use."""
        for target, source in self._pairs:
            target.copy_(source())
