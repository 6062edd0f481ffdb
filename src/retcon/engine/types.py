"""The Generator protocol: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

GenerationStop = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one generation.

    temperature 0 is greedy. top_p in (0, 1] keeps the smallest set of ids whose probability reaches it. max_tokens:
    ids at most. stop_ids: generation ends after one of them, which is part of what was generated. seed: of this
    request's own random stream; the same seed and the same ids give the same generation.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """ids: (T,), a stop id among them if one ended it.

    logprobs: (T,) nats under the untempered, untruncated model; None where the engine knows none.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    stop: GenerationStop


class Generator(Protocol):
    """An engine. A request id names one trajectory over its turns, so that the engine may keep its keys and values."""

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids` (the whole history, (T,)). Raises EngineError for a request that cannot be served."""
        ...

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        """Log-probs of ids[start:], (T - start,) nats under the untempered model; start ≥ 1."""
        ...

    async def release(self, request_id: str) -> None:
        """The trajectory is over: whatever is kept for it may go. Unknown ids are ignored."""
        ...
