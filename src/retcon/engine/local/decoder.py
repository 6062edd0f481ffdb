"""What computes a packed forward: the model as transformers has it, or the lean one where that is known to agree."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from retcon.core.errors import ComputeWarning, EngineError, told_as
from retcon.engine.local.attention import ForwardPlan, Shapes, forward
from retcon.engine.local.forward import (
    Attended,
    Invariance,
    Planned,
    Probes,
    Products,
    Step,
    Stretch,
    linear_layers,
    plan,
)
from retcon.engine.local.lean import Lean, room, why_not
from retcon.engine.local.sampling import CHUNK
from retcon.engine.local.slabs import Place, Slab, padded
from retcon.models.loading import positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOG = logging.getLogger(__name__)

TRIED_IDS = 6
"""Tokens of a history with which a decoder is compared."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
"""How far log-probs may be apart (see `compare`). Rounding makes .04, in 24 layers of bfloat16; other attention .5."""
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


def decoder_for(model: PreTrainedModel, kept: Shapes, max_len: int, reserved: int = 0) -> Decoder:
    """Choose the quickest decoder with the log-probs of the model's own forward; log which.

    kept: what the model keeps of a token (`attention.shapes`). reserved: bytes of a GPU that are not free for it.

    Raises EngineError where all differ, with the number. Warns (ComputeWarning) where the lean one lacks only memory.
    """
    with torch.inference_mode():
        for decoder in _decoders(model, kept.products, max_len, reserved):
            worst, relative = compare(decoder, model, kept, min(TRIED_IDS, max_len))
            if relative <= TOLERANCE.get(model.dtype, 0.2):
                _LOG.info("decoding with %s", decoder.about)
                return decoder
    raise EngineError(
        f"{type(model).__name__}: attention over stored keys and values gives log-probs that differ from those of the "
        f"model's own forward, by up to {worst:.2g} nats (on average by {relative:.1%} of their standard deviation); "
        "use a model whose layers all have standard attention, or a vLLM server"
    )


def _decoders(model: PreTrainedModel, attended: Attended, max_len: int, reserved: int) -> Iterator[Decoder]:
    """Those that may decode the model, the quickest first."""
    if (reason := why_not(model)) is None:
        needed, free = room(model, reserved)
        if needed <= free:
            yield LeanDecoder(model, attended, max_len)
            reason = f"the lean one's log-probs differ from those of {type(model).__name__}"
        else:
            reason = f"the lean one wants {needed / 2**30:.2f} GiB of free memory, and there are {free / 2**30:.2f}"
            slower = f"rollouts decode with transformers' own forward, which is slower: {reason}"
            warnings.warn(slower, ComputeWarning, stacklevel=4)
    yield Transformers(model, attended, reason)


def compare(decoder: Decoder, model: PreTrainedModel, kept: Shapes, length: int) -> tuple[float, float]:
    """Compare a decoder's log-probs with those of the model's own forward.

    The decoder feeds two prompts in one forward. In the next it feeds the first a second chunk, decodes two tokens of
    the second, which was rolled back, and feeds these to a fork of that. The model gets each history whole, without
    cache or padding. length: tokens of a history, at least 3.

    Returns the largest difference, in nats, and the root mean square of a token's differences, averaged over the tokens
    (one that rounding gives to another expert is far off), relative to the log-probs' standard deviation.
    """
    half, vocabulary = length // 2, model.config.get_text_config().vocab_size
    histories = torch.randint(vocabulary, (3, length), generator=torch.Generator().manual_seed(0))
    histories[2, :half] = histories[1, :half]  # which it replaces after the rollback
    with told_as(EngineError, f"the forward of {type(model).__name__}"):
        logits: Tensor = model(input_ids=histories.to(model.device), use_cache=False).logits
    expected = logits.float().log_softmax(-1).nan_to_num(0, 0, 0)
    slab = Slab(padded(length), 3, kept.layers, model.dtype, model.device)
    apart: list[Tensor] = []
    for decoded, fed in (  # tokens of each forward: history, slot, start, end
        ([], [(0, 0, 0, half), (1, 1, 0, half + 2)]),
        ([(2, 1, half, half + 2)], [(0, 0, half, length), (2, 2, half, length)]),
    ):
        steps = [Step(Place(slab, slot), histories[n, a:b].tolist(), a) for n, slot, a, b in decoded]
        stretches = [Stretch(Place(slab, slot), a, histories[n, a:b].tolist(), b - a - 1) for n, slot, a, b in fed]
        rows = [expected[n, a:b] for n, _, a, b in decoded] + [expected[n, a + 1 : b] for n, _, a, b in fed]
        want = torch.cat(rows)
        got = decoder(plan(steps, stretches, decoder, model.device)).logits(range(len(want))).float().log_softmax(-1)
        apart.append(got.nan_to_num(0, 0, 0) - want)
        slab.show(1, half)
        for tensor in slab.tensors:
            tensor[2, :, :half] = tensor[1, :, :half]
    found, spread = torch.cat(apart), expected.std(-1).mean().clamp_min(1e-3)
    return float(found.abs().max()), float(found.square().mean(-1).sqrt().mean() / spread)


def check_model(model: PreTrainedModel, max_len: int) -> None:
    """Refuse (EngineError) what a comparison over few tokens does not show."""
    name, config = type(model).__name__, model.config.get_text_config()
    lower = "lower max_len (in a recipe: rollout.max_tokens + rollout.lookahead_tokens) to"
    if (limit := positions(config)) is not None and max_len > limit:
        raise EngineError(f"max_len {max_len} is more than the {limit} positions of {name}; {lower} {limit}")
    window = getattr(config, "sliding_window", None)
    for kind in getattr(config, "layer_types", None) or ["sliding_attention"]:  # all or none, where it lists no layers
        if kind not in ("full_attention", "sliding_attention"):
            raise EngineError(f"{name} has {kind} layers, whose state the slotted cache cannot hold")
        if kind == "sliding_attention" and window and max_len > window:
            raise EngineError(f"{name} attends over a sliding window of {window} tokens, less than max_len {max_len}; "
                              f"{lower} {window}")  # fmt: skip
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(kind for kind in rope.values() if isinstance(kind, dict))):  # some have one for a kind of layer
        original = "original_max_position_embeddings"
        trained = one.get(original) or getattr(config, original, None)
        if one.get("rope_type") == "longrope" and trained and max_len > trained:  # what is kept was rotated otherwise
            raise EngineError(f"{name} rotates all positions otherwise in texts of more than {trained} tokens "
                              f"(longrope), and max_len is {max_len}; {lower} {trained}")  # fmt: skip
