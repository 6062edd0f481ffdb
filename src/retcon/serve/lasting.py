"""An engine whose requests last longer than a rollout: a conversation goes on in the keys and values that it has."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.engine.types import Generation, Generator, SamplingParams, SetsAside


class Lasting:
    """Implements `Generator`: what a rollout releases stays open until `end`."""

    def __init__(self, engine: Generator) -> None:
        self._engine = engine

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        return await self._engine.generate(request_id, ids, params)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        return await self._engine.score(request_id, ids, start)

    async def release(self, request_id: str) -> None:
        """The conversation may go on, whenever its client says so."""
        if isinstance(self._engine, SetsAside):
            self._engine.set_aside(request_id)

    async def end(self, request_id: str) -> None:
        await self._engine.release(request_id)
