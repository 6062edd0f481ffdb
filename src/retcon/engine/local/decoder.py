"""Decoders of the engine's forwards, and the choice of the quickest.

A decoder must give the log-probs of the model's own forward. The fused one and the model's modules around attention
over slabs compute packed forwards; for any other model, its own forward and cache (`own`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from retcon.core.errors import ComputeWarning, EngineError, reraise_as
from retcon.engine.local.attention import ForwardPlan, ShapeRecorder, forward, record_shapes
from retcon.engine.local.forward import (
    Chunk,
    Invariance,
    Output,
    PlanOptions,
    Probes,
    Products,
    Step,
    linear_layers,
    plan_forward,
)
from retcon.engine.local.fused import FusedForward, needed_memory, why_unsupported
from retcon.engine.local.own import CACHE_USES, OwnForward
from retcon.engine.local.slabs import KeysAndValues, Layout, Place, round_up
from retcon.models.loading import max_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LOG = logging.getLogger(__name__)

TRIED_IDS = 6
"""Tokens of a history with which a decoder is compared."""
TRIED_OWN = (6, 24)
"""Those with which a model's own cache is: fewer and more than its convolutions see."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}
"""How far log-probs may be apart (see `compare`). Rounding makes .04, in 24 layers of bfloat16; other attention .5."""
OWN_TOLERANCE = {**TOLERANCE, torch.float32: 5e-5}
"""Of the model's own forward, which adds up in nearly the same order. Lost recurrent states make 2e-4 or more."""


class Decoder(Protocol):
    """about: which it is, and why, in words. layout: of the slabs whose places it is given."""

    @property
    def about(self) -> str: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def invariance(self) -> Invariance: ...

    def feed(self, steps: Sequence[Step], chunks: Sequence[Chunk], device: torch.device) -> Output:
        """Compute steps and chunks; return the output of the steps, then of the chunks."""
        ...

    def feeds(self, decoding: bool, full: bool) -> bool:
        """Return whether the next forward should feed the waiting chunks. decoding: whether it has anything else to do.
        full: whether the chunks fill it, so that waiting spares no forward."""
        ...

    def refresh(self) -> None:
        """Lay the weights out anew, as they or torch's threads have changed."""
        ...

    def forget(self) -> None:
        """Drop what was made for slabs that no longer exist."""
        ...


@runtime_checkable
class PackedDecoder(Decoder, PlanOptions, Protocol):
    """A decoder of packed forwards."""

    def __call__(self, plan: ForwardPlan) -> Output:
        """Compute a plan and store its keys and values."""
        ...


class PackedFeed:
    """A mixin that feeds everything with one packed forward."""

    def feed(self: PackedDecoder, steps: Sequence[Step], chunks: Sequence[Chunk], device: torch.device) -> Output:
        return self(plan_forward(steps, chunks, self, device))


class _EagerFeed(PackedFeed):
    """A mixin that feeds whatever waits with the next forward."""

    replays = False

    def feeds(self, decoding: bool, full: bool) -> bool:
        return True

    def forget(self) -> None:
        """Do nothing: nothing is made for a slab."""


class ModulesDecoder(_EagerFeed):
    """The model's own modules, around attention over slabs."""

    def __init__(self, model: PreTrainedModel, kept: ShapeRecorder, reason: str) -> None:
        self._model = model
        self.about = f"transformers' own forward: {reason}"
        self.layout = KeysAndValues(kept.layers, model.dtype, model.device)
        self._probes = Probes(lambda: linear_layers(model), kept.products, model.dtype, model.device)
        # Experts are not tried: how many rows one of them gets depends on the rest of the batch.
        self._tried = all(parameter.ndim < 3 for parameter in model.parameters())
        self.refresh()

    def __call__(self, plan: ForwardPlan) -> Output:
        logits = forward(self._model, plan)
        return Output(logits, _identity, logits.shape[-1])

    def refresh(self) -> None:
        """Look at the threads; the model itself holds the weights."""
        self.invariance = self._probes.now() if self._tried else Invariance()


def _identity(logits: Tensor) -> Tensor:
    return logits


class FusedDecoder(_EagerFeed):
    """A decoder by the fused forward."""

    about = "the fused forward, which gives what transformers' own gives"

    def __init__(self, model: PreTrainedModel, kept: ShapeRecorder, max_len: int) -> None:
        self._fused = FusedForward(model, max_len)
        self.layout = KeysAndValues(kept.layers, model.dtype, model.device)
        self._probes = Probes(self._of_each_shape, kept.products, model.dtype, model.device)
        self.invariance = self._probes.now()

    def __call__(self, plan: ForwardPlan) -> Output:
        head = self._fused.head
        return Output(self._fused(plan), head, head.shape[0], self.invariance.rows)

    def refresh(self) -> None:
        self._fused.refresh()
        self.invariance = self._probes.now()

    def _of_each_shape(self) -> Products:
        of_each_shape = {p.shape: p for p in self._fused.products}
        return ((shape[1], p) for shape, p in of_each_shape.items())


def choose_decoder(model: PreTrainedModel, max_len: int, reserved: int = 0) -> Decoder:
    """Choose the quickest decoder with the log-probs of the model's own forward; log which.

    reserved: bytes of a GPU that are not free for it.

    Raises EngineError where all differ, with the number. Warns (ComputeWarning) of a slower one than the model's kind
    would have with more memory, or with layers of another kind.
    """
    with torch.inference_mode():
        try:
            check_packed(model, max_len)
            packed = _packed_decoders(model, record_shapes(model), max_len, reserved)
            decoder = _first_agreeing(packed, model, [min(TRIED_IDS, max_len)], TOLERANCE)
        except EngineError as error:
            decoder = _own_decoder(model, max_len, str(error))
            warnings.warn(f"rollouts decode more slowly, with {decoder.about}", ComputeWarning, stacklevel=3)
    _LOG.info("decoding with %s", decoder.about)
    return decoder


def _first_agreeing(
    decoders: Iterable[Decoder], model: PreTrainedModel, lengths: Sequence[int], tolerance: Mapping[torch.dtype, float]
) -> Decoder:
    """Return the first of `decoders` with the log-probs of the model, over histories of each length."""
    for decoder in decoders:
        apart = [compare(decoder, model, length) for length in lengths]
        if all(relative <= tolerance.get(model.dtype, 0.2) for _, relative in apart):
            return decoder
    worst, relative = max(apart)
    raise EngineError(
        f"{type(model).__name__}: attention over stored keys and values gives log-probs that differ from those of the "
        f"model's own forward, by up to {worst:.2g} nats (on average by {relative:.1%} of their standard deviation)"
    )


def _packed_decoders(model: PreTrainedModel, kept: ShapeRecorder, max_len: int, reserved: int) -> Iterator[Decoder]:
    """Yield decoders of packed forwards for the model, the quickest first."""
    if (reason := why_unsupported(model)) is None:
        needed, free = needed_memory(model, reserved)
        if needed <= free:
            yield FusedDecoder(model, kept, max_len)
            reason = f"the fused one's log-probs differ from those of {type(model).__name__}"
        else:
            reason = f"the fused one needs {needed / 2**30:.2f} GiB of free memory, and {free / 2**30:.2f} are free"
            slower = f"rollouts decode with transformers' own forward, which is slower: {reason}"
            warnings.warn(slower, ComputeWarning, stacklevel=5)
    yield ModulesDecoder(model, kept, reason)


def _own_decoder(model: PreTrainedModel, max_len: int, reason: str) -> Decoder:
    """Return the model's own forward, with as much of its cache as works."""
    name, last = type(model).__name__, ""
    for way in CACHE_USES:
        if way.exact and model.dtype is not torch.float32:
            continue
        try:
            with reraise_as(EngineError, name):
                decoder = OwnForward(model, way, reason)
                found = _first_agreeing([decoder], model, sorted({min(n, max_len) for n in TRIED_OWN}), OWN_TOLERANCE)
                decoder.measure()
            return found
        except EngineError as error:
            last = str(error)
    raise EngineError(f"{name} cannot be served: {last}")


def compare(decoder: Decoder, model: PreTrainedModel, length: int) -> tuple[float, float]:
    """Compare a decoder's log-probs with those of the model's own forward.

    The decoder feeds two prompts in one forward. In the next it feeds the first a second chunk, decodes two tokens of
    the second, which was rolled back, and feeds these to a fork of that; then it decodes one token of two each. The
    model gets each history whole, without cache or padding. length: tokens of a history, at least 3.

    Returns the largest difference, in nats, and the root mean square of a token's differences, averaged over the tokens
    (one that rounding gives to another expert is far off), relative to the log-probs' standard deviation.
    """
    half, vocabulary = length // 2, model.config.get_text_config().vocab_size
    histories = torch.randint(vocabulary, (3, length), generator=torch.Generator().manual_seed(0))
    pad = getattr(model.config.get_text_config(), "pad_token_id", None)
    if pad is not None and 0 <= pad < vocabulary:  # after which some models count positions otherwise
        histories[:, 1] = pad
    histories[2, :half] = histories[1, :half]  # which it replaces after the rollback
    with reraise_as(EngineError, f"the forward of {type(model).__name__}"):
        logits: Tensor = model(input_ids=histories.to(model.device), use_cache=False).logits
    expected = logits.float().log_softmax(-1).nan_to_num(0, 0, 0)
    slab = decoder.layout.slab(round_up(length), 3)
    apart: list[Tensor] = []
    for decoded, fed in (  # tokens of each forward: history, slot, start, end
        ([], [(0, 0, 0, half), (1, 1, 0, half + 2)]),
        ([(2, 1, half, half + 2)], [(0, 0, half, length - 1), (2, 2, half, length - 1)]),
        ([(0, 0, length - 1, length), (2, 2, length - 1, length)], []),
    ):
        steps = [Step(Place(slab, slot), histories[n, a:b].tolist(), a) for n, slot, a, b in decoded]
        chunks = [Chunk(Place(slab, slot), a, histories[n, a:b].tolist(), b - a - 1) for n, slot, a, b in fed]
        rows = [expected[n, a:b] for n, _, a, b in decoded] + [expected[n, a + 1 : b] for n, _, a, b in fed]
        want = torch.cat(rows)
        got = decoder.feed(steps, chunks, model.device).logits(range(len(want))).float().log_softmax(-1)
        apart.append(got.nan_to_num(0, 0, 0) - want)
        for chunk in chunks:
            slab.show(chunk.place.slot, chunk.start + len(chunk.ids))
        if not decoded:
            slab.show(1, half)
            slab.copy_from(slab, [1], [2], [half])
    found, spread = torch.cat(apart), expected.std(-1).mean().clamp_min(1e-3)
    return float(found.abs().max()), float(found.square().mean(-1).sqrt().mean() / spread)


def check_packed(model: PreTrainedModel, max_len: int) -> None:
    """Check layers and window, which a short comparison does not show (EngineError)."""
    name, config = type(model).__name__, model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    for kind in getattr(config, "layer_types", None) or ["sliding_attention"]:  # all or none, where it lists no layers
        if kind not in ("full_attention", "sliding_attention"):
            raise EngineError(f"{name} has {kind} layers")
        if kind == "sliding_attention" and window and max_len > window:
            raise EngineError(f"{name} attends over a window of {window} tokens, less than max_len {max_len}")


def check_model(model: PreTrainedModel, max_len: int) -> None:
    """Check positions and rotations, which a short comparison does not show (EngineError)."""
    name, config = type(model).__name__, model.config.get_text_config()
    lower = "lower max_len (in a recipe: rollout.max_tokens + rollout.lookahead_tokens) to"
    if (limit := max_positions(config)) is not None and max_len > limit:
        raise EngineError(f"max_len {max_len} is more than the {limit} positions of {name}; {lower} {limit}")
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(kind for kind in rope.values() if isinstance(kind, dict))):  # some have one for a kind of layer
        original = "original_max_position_embeddings"
        trained = one.get(original) or getattr(config, original, None)
        if one.get("rope_type") == "longrope" and trained and max_len > trained:  # what is kept was rotated otherwise
            raise EngineError(f"{name} rotates all positions otherwise in texts of more than {trained} tokens "
                              f"(longrope), and max_len is {max_len}; {lower} {trained}")  # fmt: skip
