"""The Generator protocol: token ids in, token ids out; and what training asks of an engine besides."""

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
    """How to sample one generation, in vLLM's terms and order: temperature, then min_p, then top_k, then top_p.

    Each truncation sees what the ones before it left, renormalised; of tokens of equal probability the lower one ranks
    first. (transformers applies min_p last, which keeps more where min_p and top_p are both set.)

    temperature: the logits are divided by it; 0 is greedy (as vLLM, below 1e-5 is too), and truncates nothing.
    min_p: keeps the tokens whose probability is at least min_p times that of the most probable one; 0 is off.
    top_k: keeps the k most probable tokens; 0 is off. top_p: keeps the smallest set of tokens whose probability reaches
    it; 1 is off.
    max_tokens: tokens at most. stop_ids: generation ends after one of them. stop: generation ends after the token that
    completes one of these strings in the text that was generated. What ended it is part of what was generated.
    seed: of this request's own random stream; the same seed and the same ids give the same generation.
    entropies: of how many tokens, from the first on, the entropy of their distribution is wanted; an engine that cannot
    tell it does not. message_tokens: of the message at most, as the server counts, for an engine whose ids are another
    tokenizer's (`SpeaksText`), which counts max_tokens in those; 0: max_tokens alone.
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
    """Raises EngineError that names the parameter that cannot be served, and its range."""
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
    """ids: (T,), the stop id or the ids of the stop string that ended it among them.

    logprobs: (T,) nats under the untempered, untruncated model; None where the engine knows none.
    sampling_logprobs: (T,) nats under the distribution that was sampled from: tempered, truncated, renormalised, so 0
    where it was greedy; None where the engine knows none.
    version: of the weights that sampled all of it, where the engine tells. versions: (T,), of those that sampled each
    token, from an engine that carries a generation over a change of weights (`CarriesOver`).
    entropies: (up to SamplingParams.entropies,) nats, of the untempered, untruncated distributions that the first
    tokens were drawn from; None where none were asked for, or the engine does not know them.
    too_long: what a server said of a history that leaves no room, which only it could tell: nothing was generated, and
    stop is `length`. Empty otherwise.
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
    """An engine. A request id names one trajectory over its turns, so that the engine may keep its keys and values."""

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids` (the whole history, (T,)). Raises EngineError for a request that cannot be served."""
        ...

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        """Log-probs of ids[start:], (T - start,) nats under the untempered model; start ≥ 1. None where the engine
        knows none."""
        ...

    async def release(self, request_id: str) -> None:
        """The trajectory is over: whatever is kept for it may go. Unknown ids are ignored."""
        ...


@runtime_checkable
class Connects(Protocol):
    """An engine elsewhere, whose connections belong to an event loop."""

    def connected(self) -> AbstractAsyncContextManager[None]:
        """Within, it can be asked. Raises EngineError where it is down, or is not what it should be."""
        ...


@runtime_checkable
class SpeaksText(Protocol):
    """An engine whose model gives no ids: those of its rollouts are another tokenizer's, and not to be learnt from."""

    @property
    def encoded_by(self) -> str:
        """Whose tokenizer stands in."""
        ...


@runtime_checkable
class NamesModel(Protocol):
    """An engine elsewhere that says what its model is called there."""

    @property
    def model(self) -> str:
        """Empty before it is connected, where nobody named it."""
        ...


class Statistics(Protocol):
    """What an engine has done, in numbers; `copy.copy` keeps a state of it."""

    def since(self, before: Self) -> Self:
        """The difference to an earlier copy."""
        ...

    def metrics(self) -> Mapping[str, float | None]:
        """What a run logs of a step; None of what was not measured."""
        ...


@runtime_checkable
class TellsStatistics(Protocol):
    """An engine that counts what it does."""

    @property
    def stats(self) -> Any:
        """`Statistics`."""
        ...


@runtime_checkable
class SetsAside(Protocol):
    """An engine that waits for the requests it has open, so that many are computed together."""

    def set_aside(self, request_id: str) -> None:
        """Nobody knows when this one is asked again: what is kept for it stays, and nothing waits for it until then."""
        ...


@runtime_checkable
class Forks(Protocol):
    """An engine that can begin one trajectory with what it has kept of another."""

    def fork(self, request_id: str, source_id: str, length: int) -> None:
        """The first generation of `request_id` will follow the first `length` tokens of what `source_id` was asked
        last, which is not under way now. Without room for it, and of unknown ids, nothing is kept."""
        ...


@runtime_checkable
class TakesWeights(Protocol):
    """An engine over weights that somebody else changes in place: those of the model that it was built with."""

    def invalidate(self) -> None:
        """The weights have changed, or are about to: forget what was computed under the old ones, and free its memory.
        Open requests stay open. Raises EngineError while something is being computed."""
        ...


@runtime_checkable
class CarriesOver(Protocol):
    """An engine that goes on with a generation where other weights take over."""

    version: int | None
    """Of the weights, as it is told: told once, each token says by which it was sampled."""

    def suspended(self) -> AbstractAsyncContextManager[None]:
        """Within, nothing computes with the weights of this process, which may change. What is under way loses none of
        its tokens; the engine says whether its keys and values are kept or computed anew."""
        ...


@runtime_checkable
class FollowsWeights(Protocol):
    """An engine with weights of its own, elsewhere, which are to be those of the model that it was built with."""

    async def follow(self) -> None:
        """The model has other weights: what is generated from here on comes from them alone."""
        ...


@runtime_checkable
class TrainableEngine(Generator, TakesWeights, TellsStatistics, AbstractAsyncContextManager[Any], Protocol):
    """What training needs: text, weights in, statistics out, and an end, at which waiting calls are given up."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """That are trained in place of a model's weights (`retcon.models.lora`). rank: theirs. targets: last names of the
    layers that have one. save: writes them into a folder, in peft's format."""

    rank: int
    targets: tuple[str, ...]
    save: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """What an engine is built for. model: gives the weights, in this process, in evaluation mode, on their device; an
    engine that has its own does not call it. max_len: tokens of a request, generated ones included. max_requests: that
    are open at a time at most. kv_memory_mb: MiB for keys and values, 0 for as much as fits. reserved: bytes that
    whoever shares the device has yet to take. folder: of a model with this tokenizer and configuration, for an engine
    that loads it elsewhere; dtype: of its weights then, auto for the folder's own. threads: of a CPU. trained: whether
    the weights will change. adapters: what changes of them, where it is not all; `model` has them merged."""

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
    """Watches one generation for `strings`, none of them empty.

    Looks at no more tokens than the longest string has bytes: the cost of a token does not grow with the text. A
    character whose bytes are spread over ids, or not yet whole at the end, does no harm.
    """

    def __init__(self, tokenizer: Tokenizer, strings: Sequence[str]) -> None:
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        # An id is one byte at least. One id more, because some tokenizers drop the space that a text begins with.
        longest = max((len(s.encode("utf-8", "replace")) for s in strings), default=0)
        self._tail: deque[int] = deque(maxlen=longest + 1)

    def completed_by(self, token: int) -> bool:
        """Whether `token`, the next id that was generated, completes one of the strings."""
        if not self._strings:
            return False
        if not self._tokenizer.decode((token, token)):  # beyond the vocabulary: it would push others out of the tail
            return False
        self._tail.append(token)
        text = self._tokenizer.decode(tuple(self._tail))
        return any(string in text for string in self._strings)
