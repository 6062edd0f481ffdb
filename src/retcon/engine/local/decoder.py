"""What computes a packed forward: the model as transformers has it, or the lean one where that is known to agree."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from retcon.core.errors import ComputeWarning
from retcon.engine.local.attention import ForwardPlan, FreshJob, forward
from retcon.engine.local.drawing.sampling import CHUNK
from retcon.engine.local.forward import Planned
from retcon.engine.local.invariance import Attended, Invariance, Probes, Products, linear_layers
from retcon.engine.local.lean import Lean, room, why_not

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOG = logging.getLogger(__name__)

AGREE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""How far the lean forward's logits may be off, relative to the largest: rounding, and no more."""


SCORED, SCORED_LOGITS = 64, 2**22
"""Tokens whose logits are computed together for their log-probs: so many at least, and else so many logits at most. All
logits of some long texts would be hundreds of MB, and their page faults cost more than the products."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a forward gave of the K tokens that are kept. states: (K, W), of which `head` makes logits (K, V).

    rows: `head` is given so many at least.
    """

    states: Tensor
    head: Callable[[Tensor], Tensor]
    vocabulary: int
    rows: int = 1

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Of those tokens: (N, V)."""
        count = max(len(tokens), self.rows)
        if len(self.states) == count and list(tokens) == list(range(len(tokens))):
            return self.head(self.states)[: len(tokens)]
        padded = [*tokens, *[0] * (count - len(tokens))]
        index = torch.tensor(padded, dtype=torch.long, device=self.states.device)
        return self.head(self.states.index_select(0, index))[: len(tokens)]

    def logprobs(self, first: int, nexts: Sequence[int]) -> list[float]:
        """Of the ids that follow the tokens from `first` on, in nats."""
        found: list[float] = []
        while len(found) < len(nexts):
            start = len(found)
            count = min(len(nexts) - start, max(SCORED, SCORED_LOGITS // self.vocabulary))
            logits = self.logits(range(first + start, first + start + count))
            ids = torch.tensor(nexts[start : start + count], device=logits.device)
            together = CHUNK * torch.get_num_threads() if logits.device.type == "cpu" else logits.numel()
            pieces = max(1, together // logits.shape[-1])
            for some, of in zip(logits.split(pieces), ids[:, None].split(pieces), strict=True):
                found += some.float().log_softmax(-1).gather(1, of)[:, 0].tolist()
        return found

    def is_nan(self, token: int) -> bool:
        """Whether its logits are: what is not finite before the last norm is nan after it."""
        return bool(self.states[token].isnan().any())


class Decoder(Planned, Protocol):
    """about: which it is, and why, in words."""

    @property
    def about(self) -> str: ...

    def __call__(self, plan: ForwardPlan) -> Kept:
        """What the plan keeps of its ids, their keys and values stored."""
        ...

    def feeds(self, decoding: bool, full: bool) -> bool:
        """Whether the next forward should feed what waits to be fed. decoding: whether it has anything else to do.
        full: whether what waits fills it, so that to wait for more would spare no forward."""
        ...

    def refresh(self) -> None:
        """The weights have changed, or how many threads torch has, by which products go."""
        ...

    def forget(self) -> None:
        """Keys and values are forgotten: what was made for slabs that are gone goes with them."""
        ...


class _AtOnce:
    """What feeds with the next forward whatever there is."""

    replays = False

    def feeds(self, decoding: bool, full: bool) -> bool:
        return True

    def forget(self) -> None:
        """Nothing is made for a slab."""


class Transformers(_AtOnce):
    """The model's own modules, around attention over slabs."""

    def __init__(self, model: PreTrainedModel, attended: Attended, reason: str) -> None:
        self._model = model
        self.about = f"transformers' own forward: {reason}"
        self._probes = Probes(lambda: linear_layers(model), attended, model.dtype, model.device)
        # Experts are not tried: how many rows one of them gets depends on the rest of the batch.
        self._tried = all(parameter.ndim < 3 for parameter in model.parameters())
        self.refresh()

    def __call__(self, plan: ForwardPlan) -> Kept:
        logits = forward(self._model, plan)
        return Kept(logits, _themselves, logits.shape[-1])

    def refresh(self) -> None:
        """It holds the weights itself."""
        self.invariance = self._probes.now() if self._tried else Invariance()


def _themselves(logits: Tensor) -> Tensor:
    return logits


class LeanDecoder(_AtOnce):
    """The lean forward."""

    about = "the lean forward, which gives what transformers' own gives"

    def __init__(self, model: PreTrainedModel, attended: Attended, max_len: int) -> None:
        self._lean = Lean(model, max_len)
        self._probes = Probes(self._of_each_shape, attended, model.dtype, model.device)
        self.invariance = self._probes.now()

    def __call__(self, plan: ForwardPlan) -> Kept:
        head = self._lean.head
        return Kept(self._lean(plan), head, head.shape[0], self.invariance.rows)

    def refresh(self) -> None:
        self._lean.refresh()
        self.invariance = self._probes.now()

    def _of_each_shape(self) -> Products:
        of_each_shape = {p.shape: p for p in self._lean.products}
        return ((shape[1], p) for shape, p in of_each_shape.items())


def decoder_for(model: PreTrainedModel, attended: Attended, max_len: int, reserved: int = 0) -> Decoder:
    """The lean decoder where the model is of a kind that it knows, and gives what transformers gives. Logs which it is.

    attended: `Shapes.products`. reserved: bytes of a GPU that are not free for it. Warns (ComputeWarning) where the
    lean one would do, but memory lacks.
    """
    decoder = _choose(model, attended, max_len, reserved)
    _LOG.info("decoding with %s", decoder.about)
    return decoder


def _choose(model: PreTrainedModel, attended: Attended, max_len: int, reserved: int) -> Decoder:
    if (reason := why_not(model)) is not None:
        return Transformers(model, attended, reason)
    needed, free = room(model, reserved)
    if needed > free:
        reason = f"the lean one wants {needed / 2**30:.2f} GiB of free memory, and there are {free / 2**30:.2f}"
        slower = f"rollouts decode with transformers' own forward, which is slower: {reason}"
        warnings.warn(slower, ComputeWarning, stacklevel=3)
        return Transformers(model, attended, reason)
    with torch.inference_mode():
        lean = LeanDecoder(model, attended, max_len)
        if agrees(lean, model, max_len):
            return lean
    return Transformers(model, attended, f"the lean one's logits differ from those of {type(model).__name__}")


def agrees(decoder: Decoder, model: PreTrainedModel, max_len: int) -> bool:
    """Whether both give the same logits for a few tokens."""
    count = min(8, max_len)
    ids = torch.arange(count, device=model.device) * 7919 % model.config.get_text_config().vocab_size
    rows = torch.arange(count, device=model.device)
    plan = ForwardPlan(ids, rows, rows, jobs=[FreshJob(0, 1, count)])
    expected, got = forward(model, plan).float(), decoder(plan).logits(range(count)).float()
    worst = (expected - got).abs().max() / expected.abs().max()
    return bool(worst <= AGREE.get(model.dtype, 0.1))
