"""Drafts of the next ids, from earlier generations (speculative decoding).

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

from collections.abc import Sequence

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
