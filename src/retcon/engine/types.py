"""Protocols of engines, from token ids to token ids, and of training."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

from retcon.chat.types import Tokenizer
from retcon.core.errors import EngineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GenerationStop = Literal["stop", "length"]
GREEDY_BELOW = 1e-5
"""A temperature below this is greedy, as in vLLM: dividing by it overflows."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one generation, in vLLM's order: temperature, min_p, top_k, top_p.

    Each truncation sees what the previous ones left, renormalised; of equally probable tokens the lower id ranks first.
    (transformers applies min_p last, which keeps more if min_p and top_p are both set.)

    Args:
        temperature: divides the logits; below 1e-5, as in vLLM, sampling is greedy and truncates nothing.
        min_p: keeps tokens with at least min_p times the probability of the most probable one; 0 is off.
        top_k: keeps the k most probable tokens; 0 is off.
        top_p: keeps the smallest set of tokens whose probability reaches it; 1 is off.
        max_tokens: most tokens.
        stop_ids: end the generation, of which they are part.
        stop: strings that end the generation after the token that completes one of them.
        seed: of the request's random stream; equal seeds and ids give equal generations.
        entropies: number of first tokens whose entropy is returned, by engines that know it.
        message_tokens: most tokens by the server's count, for an engine with a stand-in tokenizer (`TextEngine`); 0:
            only max_tokens, by the stand-in's count.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 512
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0
    entropies: int = 0
    message_tokens: int = 0


def check_params(request_id: str, params: SamplingParams) -> None:
    """Check sampling parameters. Raises EngineError with the parameter and its range."""
    checks = (
        ("temperature", "a finite number ≥ 0", math.isfinite(params.temperature) and params.temperature >= 0),
        ("top_p", "in (0, 1]", 0 < params.top_p <= 1),
        ("top_k", "≥ 0 (0 is off)", params.top_k >= 0),
        ("min_p", "in [0, 1]", 0 <= params.min_p <= 1),
        ("max_tokens", "≥ 1", params.max_tokens >= 1),
        ("stop", "a tuple of strings that are not empty", not isinstance(params.stop, str) and all(params.stop)),
    )
    for name, allowed, holds in checks:
        if not holds:
            raise EngineError(f"request {request_id}: {name} is {getattr(params, name)!r}; it must be {allowed}")


@dataclass(frozen=True, slots=True)
class Generation:
    """A generated continuation, with None for unknown values.

    Args:
        ids: (T,), including the stop id or the ids of the stop string.
        logprobs: (T,) nats under the untempered, untruncated model.
        sampling_logprobs: (T,) nats under the tempered, truncated, renormalised distribution; 0 if greedy.
        version: of the weights that sampled all tokens.
        versions: (T,), of the weights that sampled each token, from an engine that `CarriesOver`.
        entropies: (up to SamplingParams.entropies,) nats, of the first tokens' untempered, untruncated distributions.
        too_long: a server's message that the history leaves no room; then there are no ids, and stop is `length`.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    stop: GenerationStop
    sampling_logprobs: tuple[float, ...] | None = None
    version: str | None = None
    versions: tuple[int, ...] | None = None
    entropies: tuple[float, ...] | None = None
    too_long: str = ""


class Generator(Protocol):
    """An engine. A request id names a trajectory, so that its keys and values can be kept over turns."""

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`, the whole history, (T,). Raises EngineError for an invalid request."""
        ...

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        """Return log-probs of ids[start:], or None: (T - start,) nats, untempered; start ≥ 1."""
        ...

    async def release(self, request_id: str) -> None:
        """Free the memory of a trajectory that ended. Unknown ids are ignored."""
        ...


@runtime_checkable
class Connectable(Protocol):
    """An engine with connections, which belong to an event loop."""

    def connected(self) -> AbstractAsyncContextManager[None]:
        """Connect within the block. Raises EngineError if a server is down or not the expected one."""
        ...


@runtime_checkable
class TextEngine(Protocol):
    """An engine of text, with a stand-in tokenizer's ids."""

    @property
    def encoded_by(self) -> str:
        """Name of the stand-in tokenizer."""
        ...


@runtime_checkable
class NamedEngine(Protocol):
    """An engine that knows its model's name on a server."""

    @property
    def model(self) -> str:
        """Name of the model; empty until it is connected, unless configured."""
        ...


class Statistics(Protocol):
    """Counters of an engine; `copy.copy` makes a snapshot."""

    def since(self, before: Self) -> Self:
        """Return the difference to an earlier copy."""
        ...

    def metrics(self) -> Mapping[str, float | None]:
        """Return a step's metrics; None for those that were not measured."""
        ...


@runtime_checkable
class HasStatistics(Protocol):
    """An engine with counters."""

    @property
    def stats(self) -> Any:
        """The engine's `Statistics`."""
        ...


@runtime_checkable
class ParkableEngine(Protocol):
    """An engine that waits for its open requests, to compute many together."""

    def set_aside(self, request_id: str) -> None:
        """Keep the request's cache, but do not wait for its next call."""
        ...


@runtime_checkable
class ForkableEngine(Protocol):
    """An engine that can copy one trajectory's cache to another."""

    def fork(self, request_id: str, source_id: str, length: int) -> None:
        """Copy the first `length` cached tokens of `source_id` for a new request.

        Does nothing without room, for unknown ids, and while the source has a call.
        """
        ...


@runtime_checkable
class SharedWeights(Protocol):
    """An engine over the trainer's own weights, which change in place."""

    def invalidate(self) -> None:
        """Drop and free everything computed with the old weights; open requests stay open.

        Raises EngineError while a request is being computed.
        """
        ...


@runtime_checkable
class CarriesOver(Protocol):
    """An engine that continues generations under way with new weights."""

    version: int | None
    """Version of the weights, set by the trainer; once it is set, generations have `versions`."""

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Suspend all computation for a block, in which weights may change; no tokens are lost."""
        ...


@runtime_checkable
class RemoteWeights(Protocol):
    """An engine with a copy of the trained model's weights elsewhere."""

    async def follow(self) -> None:
        """Send the model's new weights; later generations use only these."""
        ...


@runtime_checkable
class TrainableEngine(Generator, SharedWeights, HasStatistics, AbstractAsyncContextManager[Any], Protocol):
    """An engine for training; on exit it gives up waiting calls."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """LoRA adapters under training (`retcon.models.lora`).

    targets: last names of the adapted layers. save: writes them into a folder in peft's format.
    """

    rank: int
    targets: tuple[str, ...]
    save: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The arguments from which an engine is built.

    Args:
        model: returns the model, in evaluation mode, on its device; not called by engines with their own weights.
        max_len: tokens of a request, generated ones included.
        max_requests: most open requests.
        kv_memory_mb: MiB for keys and values, 0 for as much as fits.
        reserved: bytes of the device that others have yet to allocate.
        folder: of the model, for an engine that loads it elsewhere, with weights of `dtype` (auto: the folder's own).
        threads: of a CPU.
        trained: whether the weights will change.
        adapters: those under training, merged in `model`.
    """

    model: Callable[[], PreTrainedModel]
    tokenizer: Tokenizer
    max_len: int
    max_requests: int
    kv_memory_mb: int = 0
    reserved: int = 0
    folder: Path | None = None
    dtype: str = "auto"
    threads: int = 1
    trained: bool = False
    adapters: Adapters | None = None


class StopStrings:
    """Search for stop strings, none of them empty, in a growing generation.

    It decodes no more tokens than the longest string has bytes, so that the cost per token is constant. A character may
    be spread over several ids.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        # An id is one byte at least. One id more, because some tokenizers drop the space that a text begins with.
        longest = max((len(s.encode("utf-8", "replace")) for s in strings), default=0)
        self._tail: deque[int] = deque(maxlen=longest + 1)

    def completed_by(self, token: int) -> bool:
        """Add the next id; return whether it completes one of the strings."""
        if not self._strings:
            return False
        if not self._tokenizer.decode((token, token)):  # beyond the vocabulary: it would push others out of the tail
            return False
        self._tail.append(token)
        text = self._tokenizer.decode(tuple(self._tail))
        return any(string in text for string in self._strings)
