"""The weights that rollouts decode with, kept equal to those that are trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

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
        layers = dict(adapter.layers()) if adapter is not None else {}
        parameters = dict(trained.named_parameters())
        cast = {n for n, p in parameters.items() if p.dtype != dtype}
        changing = {f"{name}.base_layer.weight" for name in layers} if adapter is not None else cast
        self.model = trained
        self.adapters = None
        if adapter is not None:
            targets = sorted({name.rpartition(".")[2] for name in layers})
            self.adapters = Adapters(adapter.rank, tuple(targets), adapter.save)
        self._pairs: list[tuple[Tensor, Callable[[], Tensor]]] = []
        if not cast and adapter is None:
            return
        # What the copy has in place of each parameter: a tied one is copied once, as it is one parameter.
        memo: dict[int, object] = {
            id(p): nn.Parameter(p.detach().to(dtype, copy=n in changing), requires_grad=False)
            for n, p in parameters.items()
        }
        self.model = copy.deepcopy(trained, memo) if adapter is None else adapter.plain(memo)
        self.model.eval()
        for name, target in self.model.named_parameters():
            if name.removesuffix(".weight") in layers:
                self._pairs.append((target, partial(merged_weight, layers[name.removesuffix(".weight")])))
            elif adapter is None and name in changing:
                self._pairs.append((target, parameters[name].detach))
        self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Copy the trained weights over, in place. What the engine has cached under the old ones is then of no use."""
        for target, source in self._pairs:
            target.copy_(source())
