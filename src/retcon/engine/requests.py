"""What the local engine knows of a request: its slot, what is cached there, and the call that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from retcon.core.errors import EngineError
from retcon.engine.stops import StopStrings
from retcon.engine.types import Generation, SamplingParams


@dataclass(slots=True, eq=False)
class GenerateCall:
    """A `generate` that waits for its phase, or is in it. limit: ids that may be generated. strings: that end it."""

    ids: tuple[int, ...]
    params: SamplingParams
    limit: int
    done: asyncio.Future[Generation]
    strings: StopStrings | None = None


@dataclass(slots=True, eq=False)
class ScoreCall:
    """A `score` of ids[start:] that waits."""

    ids: tuple[int, ...]
    start: int
    done: asyncio.Future[list[float]]


@dataclass(slots=True, eq=False)
class Request:
    """One trajectory. cached: ids whose keys and values lie in `slot`, from position 0. slot: -1 until admitted."""

    id: str
    slot: int = -1
    cached: tuple[int, ...] = field(default=())
    call: GenerateCall | ScoreCall | None = None

    @property
    def waiting(self) -> bool:
        return self.call is not None and not self.call.done.done()

    def fail(self, error: EngineError) -> None:
        """Raise `error` in the caller that waits, if one does."""
        if self.call is not None and not self.call.done.done():
            self.call.done.set_exception(error)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    length = min(len(first), len(second))
    if first[:length] == second[:length]:
        return length
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
