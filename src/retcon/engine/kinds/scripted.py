"""Scripted engine: try a task, a grader or a tool without a model."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import ClassVar

from pydantic import Field

from retcon.chat.types import Tokenizer
from retcon.config.schema import EngineSection, Recipe
from retcon.core.errors import EngineError, RecipeError
from retcon.engine.types import EngineSetup, Generation, SamplingParams, StopStrings, check_params

Reply = str | Exception


class ScriptedEngine:
    """A `Generator` that plays `replies`.

    replies: texts that every request id is given in order, or a function (request_id, text so far, n) of the n-th
    generation of a request, counted from 0. An exception among them is raised in its place. Control tokens in a
    reply are encoded as such; it ends after its first stop id or stop string, and is given the request's first stop id
    where it has neither.

    Log-probs are made up, but a pure function of prefix and id: `score` gives what generation under that prefix gave.
    There are no sampling log-probs, as nothing was sampled.
    seen: (request id, ids) of every requested generation, in order; params: its parameters. scored: (request id, ids,
    start). released: request ids; one that is requested again begins the replies anew.
    """

    def __init__(self, tokenizer: Tokenizer, replies: Sequence[Reply] | Callable[[str, str, int], str]) -> None:
        self.tokenizer = tokenizer
        self.replies = replies
        self.seen: list[tuple[str, tuple[int, ...]]] = []
        self.params: list[SamplingParams] = []
        self.scored: list[tuple[str, tuple[int, ...], int]] = []
        self.released: list[str] = []
        self._generations: defaultdict[str, int] = defaultdict(int)

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Return the next reply, cut after params.max_tokens ids.

        Raises EngineError at the end of the script, and for invalid parameters.
        """
        check_params(request_id, params)
        self.seen.append((request_id, tuple(ids)))
        self.params.append(params)
        n = self._generations[request_id]
        self._generations[request_id] += 1
        reply = self._reply(request_id, ids, n)
        await asyncio.sleep(0)  # other rollouts get their turn, as with a real engine
        written = self.tokenizer.encode(reply, special=True)
        strings = StopStrings(self.tokenizer, params.stop)
        for end, token in enumerate(written, start=1):
            if token in params.stop_ids or strings.completed_by(token):
                written = written[:end]
                break
        else:
            written.extend(params.stop_ids[:1])
        stop = len(written) <= params.max_tokens
        written = written[: params.max_tokens]
        logprobs = _logprobs([*ids, *written], len(ids))
        return Generation(tuple(written), logprobs, "stop" if stop else "length")

    def _reply(self, request_id: str, ids: Sequence[int], n: int) -> str:
        if callable(self.replies):
            return self.replies(request_id, self.tokenizer.decode(ids), n)
        if n >= len(self.replies):
            raise EngineError(f"request {request_id}: generation {n + 1} of a script of {len(self.replies)} replies")
        reply = self.replies[n]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> tuple[float, ...]:
        """Return what `generate` gave, or would have given, for ids[start:] after ids[:start]."""
        self.scored.append((request_id, tuple(ids), start))
        return _logprobs(ids, start)

    async def release(self, request_id: str) -> None:
        self.released.append(request_id)
        self._generations.pop(request_id, None)


def _logprobs(ids: Sequence[int], start: int) -> tuple[float, ...]:
    """Return a number in (-4, 0] for each of ids[start:], from a hash of all ids up to it."""
    digest = hashlib.blake2b(digest_size=8)
    values = []
    for i, token in enumerate(ids):
        digest.update(token.to_bytes(8, "little"))
        if i >= start:
            values.append(-4 * int.from_bytes(digest.digest(), "little") / 2**64)
    return tuple(values)


class ScriptedSection(EngineSection):
    """Section `kind = "scripted"` of `ScriptedEngine`."""

    in_process: ClassVar[bool] = False

    replies: tuple[str, ...] = Field((), description="replies of every rollout, in order")

    def check_training(self, recipe: Recipe) -> None:
        raise RecipeError("engine.kind = 'scripted' cannot be trained with: its replies follow no weights")

    def build(self, setup: EngineSetup) -> ScriptedEngine:
        return ScriptedEngine(setup.tokenizer, self.replies)
