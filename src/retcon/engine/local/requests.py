"""Requests of the local engine: their calls, cached prompts and drafts of the next ids (speculative decoding).

Agents repeat themselves: a call is tried again with one change, the rollouts of a group are much alike, and what a run
wrote in its last step it mostly writes again. So a table maps the last six ids, and the last three, to the id that
followed them most often. A draft is fed behind the id that is known, and the model samples at each of its ids, with the
logits and the random number that it would have without it; what it samples is kept up to the first id that differs. One
forward then yields several ids, and those that were not accepted were computed for nothing. What is sampled does not
depend on drafts, bit for bit, unless memory is so short that keys and values are computed again.

Speculative decoding is arXiv 2211.17192, there with a smaller model for the drafts and a rule of acceptance that keeps
the distribution; drafts from earlier rollouts are arXiv 2511.13841.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from retcon.core.errors import EngineError
from retcon.engine.local.sampling import RandomStream
from retcon.engine.local.slabs import Memory, Place
from retcon.engine.types import Generation, SamplingParams, StopStrings

if TYPE_CHECKING:
    from torch import Tensor


CONTEXTS = (6, 3)
"""Lengths of the contexts by which an id is remembered and looked up, the longer first."""
LIKELY = 0.5
"""A draft is extended while the estimated probability that all of it is accepted is at least this."""
REMEMBERED = 2**16
"""Contexts in one generation of the table. A full table replaces the old one: at most twice as many are held."""
SURE = 8
"""Largest count of an id; from then on the count against it falls, so that recent ids soon replace older ones."""

Count = tuple[int, int, int]
"""An id, how often it followed, and a count against it."""


class Drafts:
    """Counts of what followed each context. It is kept as its hash: a collision only makes a wrong guess."""

    def __init__(self) -> None:
        self._seen: dict[int, Count] = {}
        self._before: dict[int, Count] = {}

    def learn(self, ids: Sequence[int], made: Sequence[int]) -> None:
        """Count `made`, which was generated after `ids` and fed: the keys of an unfed id may be nan."""
        near = [*ids[-CONTEXTS[0] :], *made]
        for place in range(len(near) - len(made), len(near)):
            for length in CONTEXTS:
                if place >= length:
                    self._count(hash((length, *near[place - length : place])), near[place])

    def propose(self, ids: Sequence[int], most: int) -> list[int]:
        """Draft up to `most` likely ids after the last six of `ids`."""
        near = list(ids[-CONTEXTS[0] :])
        draft: list[int] = []
        likely = 1.0
        while len(draft) < most:
            seen = self._known(near)
            if seen is None:
                break
            guess, accepted, others = seen
            likely *= accepted / (accepted + others + 1)
            if likely < LIKELY:
                break
            draft.append(guess)
            near = [*near[1 - CONTEXTS[0] :], guess]
        return draft

    def _known(self, near: list[int]) -> Count | None:
        for length in CONTEXTS:
            if len(near) >= length:
                key = hash((length, *near[-length:]))
                seen = self._seen.get(key) or self._before.get(key)
                if seen is not None:
                    return seen
        return None

    def _count(self, key: int, following: int) -> None:
        guess, accepted, others = self._seen.get(key) or self._before.get(key) or (following, 0, 0)
        if guess == following:
            accepted, others = (accepted + 1, others) if accepted < SURE else (accepted, max(others - 1, 0))
        elif others < accepted:
            others += 1
        else:
            guess, accepted, others = following, 1, 1
        if key not in self._seen and len(self._seen) >= REMEMBERED:
            self._before, self._seen = self._seen, {}
        self._seen[key] = (guess, accepted, others)


Token = tuple[int, float, float]
"""An id, its log-prob and its sampling log-prob."""
AHEAD = 16
"""Spare positions of a slot beyond the known need: attention goes over all of them."""


@dataclass(slots=True, eq=False)
class GenerateCall:
    """A `generate` call. limit: most generated ids. made: those generated so far."""

    ids: tuple[int, ...]
    params: SamplingParams
    limit: int
    done: asyncio.Future[Generation]
    strings: StopStrings | None = None
    made: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)  # of what was made before the weights changed
    entropies: list[float] = field(default_factory=list)
    draws: RandomStream = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.draws = RandomStream(self.params.seed)
        self.stop_ids = frozenset(self.params.stop_ids)

    @property
    def to_feed(self) -> tuple[int, ...]:
        """Ids to cache before the next step; more than `ids` after a preemption."""
        return (*self.ids, *self.made[:-1]) if self.made else self.ids

    @property
    def wanted(self) -> int:
        """The first position of `to_feed` whose logits are wanted."""
        return len(self.ids) - 1 if not self.made else len(self.ids) + len(self.made) - 1

    @property
    def room(self) -> int:
        """Positions needed soon: the tokens to feed and some generated ones."""
        ids = len(self.ids) + len(self.made)
        return ids + min(self.limit - len(self.made), AHEAD)

    @property
    def nearest(self) -> Sequence[int]:
        """The last ids, as many as a draft's context has."""
        missing = CONTEXTS[0] - len(self.made)
        return self.made[-CONTEXTS[0] :] if missing <= 0 else (*self.ids[-missing:], *self.made)

    @property
    def wants_entropy(self) -> bool:
        """Whether the next token's entropy is requested."""
        return len(self.made) < self.params.entropies

    def take(self, token: int, logprob: float, sampling_logprob: float) -> bool:
        """Add an id; return whether it is the last one."""
        self.made.append(token)
        self.logprobs.append(logprob)
        self.sampling_logprobs.append(sampling_logprob)
        self.stopped = token in self.stop_ids or (self.strings is not None and self.strings.completed_by(token))
        return self.stopped or len(self.made) >= self.limit or self.done.done()

    def stamp(self, version: int) -> None:
        """Mark ids without a version as made by this version's weights."""
        self.versions += [version] * (len(self.made) - len(self.versions))

    def answer(self, request_id: str, version: int | None = None) -> bool:
        """Give the result to the caller, unless it is gone; return whether log-probs are numbers. version: of the
        weights, None if generations have no `versions`."""
        sound = not any(map(math.isnan, self.logprobs))
        if self.done.done():
            return sound
        if not sound:
            self.done.set_exception(_nan_error(request_id))
            return False
        if version is not None:
            self.stamp(version)
        self.done.set_result(
            Generation(
                tuple(self.made),
                tuple(self.logprobs),
                "stop" if self.stopped else "length",
                tuple(self.sampling_logprobs),
                versions=None if version is None else tuple(self.versions),
                entropies=tuple(self.entropies) if self.params.entropies else None,
            )
        )
        return True


@dataclass(slots=True, eq=False)
class ScoreCall:
    """A `score` call for ids[start:]. values: log-probs of the first tokens, as they come."""

    ids: tuple[int, ...]
    start: int
    done: asyncio.Future[list[float]]
    values: list[float] = field(default_factory=list)

    @property
    def to_feed(self) -> tuple[int, ...]:
        """All ids: the last one for its keys and values, as a generation usually follows."""
        return self.ids

    @property
    def wanted(self) -> int:
        """Position of the id that predicts ids[start]."""
        return self.start - 1

    @property
    def room(self) -> int:
        return len(self.ids)

    def answer(self, request_id: str) -> None:
        """Give the result to the caller, unless it is gone."""
        if self.done.done():
            return
        if any(map(math.isnan, self.values)):
            self.done.set_exception(_nan_error(request_id))
        else:
            self.done.set_result(self.values)


@dataclass(slots=True, eq=False)
class Request:
    """One trajectory. cached: tokens whose keys and values lie in `place`, from position 0. arrived: its number among
    all. admitted: whether it had a slot before. rested: forward of its last answer."""

    id: str
    arrived: int
    admitted: bool = False
    rested: int = 0
    place: Place | None = None
    cached: list[int] = field(default_factory=list)
    call: GenerateCall | ScoreCall | None = None

    @property
    def waiting(self) -> bool:
        return self.call is not None and not self.call.done.done()

    @property
    def unfed(self) -> int:
        """Number of its call's ids that are not cached."""
        return 0 if self.call is None else len(self.call.to_feed) - len(self.cached)

    @property
    def unsound(self) -> bool:
        """Whether the last id was drawn from nan: then cached values are nan, which no mask hides from others."""
        return isinstance(self.call, GenerateCall) and self.call.made != [] and math.isnan(self.call.logprobs[-1])

    def take(self, call: GenerateCall, drawn: Sequence[Token], draft: Sequence[int]) -> bool:
        """Add drawn ids up to the first that differs from the draft; return whether the call is over. Positions that
        were fed in vain are hidden again."""
        made, length = len(call.made), len(self.cached)
        ended = False
        for one, guess in zip(drawn, (*draft, None), strict=True):
            ended = call.take(*one)
            if ended or one[0] != guess:
                break
        taken = len(call.made) - made
        call.draws.skip(taken)
        self.cached += call.made[made - 1 : -1] if made else ()
        if self.place is not None and taken < len(drawn):
            self.place.slab.hide(self.place.slot, length + taken, length + len(drawn))
        return ended

    def fail(self, error: EngineError) -> None:
        """Raise `error` in the waiting caller, if there is one."""
        if self.call is not None and not self.call.done.done():
            self.call.done.set_exception(error)


def _nan_error(request_id: str) -> EngineError:
    return EngineError(f"request {request_id}: the model's log-probs are nan; its weights are broken")


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    length = min(len(first), len(second))
    unequal = np.fromiter(first, np.int64, length) != np.fromiter(second, np.int64, length)
    return int(unequal.argmax()) if unequal.any() else length


MAX_PROMPTS = 256
"""Most prompts in the cache."""


@dataclass(slots=True, eq=False)
class Prompt:
    """A cached prompt. logits: (V,) after its last id, None while computed. holders: requests whose slots hold it."""

    ids: tuple[int, ...]
    holders: dict[str, Request] = field(default_factory=dict)
    logits: Tensor | None = None


class PromptCache:
    """Prompts whose keys and values lie in slots, or soon will."""

    def __init__(self) -> None:
        self._by_ids: dict[tuple[int, ...], Prompt] = {}
        self._of: dict[str, Prompt] = {}

    def find(self, ids: tuple[int, ...]) -> Prompt | None:
        return self._by_ids.get(ids)

    def lead(self, request: Request, ids: tuple[int, ...]) -> None:
        """Note that the request will compute a prompt that no slot holds."""
        self.leave(request)
        if len(self._by_ids) < MAX_PROMPTS:
            self._by_ids[ids] = self._of[request.id] = Prompt(ids, {request.id: request})

    def led(self, request: Request, logits: Tensor) -> None:
        """Store the logits (V,) after the last id of a computed prompt."""
        prompt = self._of.get(request.id)
        if prompt is not None and prompt.logits is None:
            prompt.logits = logits.clone()  # not a view, which would keep those of the whole forward

    def copy(self, prompt: Prompt, request: Request, memory: Memory) -> None:
        """Copy the prompt's keys and values into the request's empty slot."""
        source = next(iter(prompt.holders.values())).place
        memory.copy([(source, request.place, len(prompt.ids))])  # type: ignore[list-item]
        request.cached = list(prompt.ids)
        prompt.holders[request.id] = request
        self._of[request.id] = prompt

    def cropped(self, request: Request) -> None:
        """Release the request's prompt if it is no longer cached whole."""
        prompt = self._of.get(request.id)
        if prompt is not None and len(request.cached) < len(prompt.ids):
            self.leave(request)

    def leave(self, request: Request) -> None:
        """Release the request's prompt."""
        prompt = self._of.pop(request.id, None)
        if prompt is not None:
            del prompt.holders[request.id]
            if not prompt.holders:
                del self._by_ids[prompt.ids]

    def clear(self) -> None:
        self._by_ids.clear()
        self._of.clear()
