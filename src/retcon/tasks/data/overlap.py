"""Training questions that repeat questions of an evaluation.

Two rules, and a match is one or the other:

same      the canonical text is the same (`text.canonical`).
13-gram   more than half of the evaluation question's words stand in runs of 13 words that the one training question has
          too. Words are lower-case runs of letters and digits, drawings left out. 13 words, and passing over runs that
          stand in more than 10 places, are GPT-3's (arXiv 2005.14165, appendix C); "more than half of it, by a single
          training instance" is Tülu 3's (arXiv 2411.15124, section 3.2), which takes runs of 8. A question of fewer
          words has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from retcon.tasks.data.text import key, words

RUN = 13
MOST_PLACES = 10
SHARE = 0.5

Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """evaluation: which question, as it was named. share: of its words, 1 where the text is the same."""

    rule: Literal["same", "13-gram"]
    evaluation: str
    share: float


class EvaluationIndex:
    """The questions of evaluations, to look training questions up in. questions: (name, question); the time to build it
    and of each look-up is linear in the text."""

    def __init__(self, questions: Iterable[tuple[str, str]]) -> None:
        self._same: dict[str, str] = {}
        self._names: list[str] = []
        self._lengths: list[int] = []
        places: defaultdict[Gram, list[tuple[int, int]]] = defaultdict(list)
        for name, question in questions:
            same = key(question)
            if same in self._same:
                continue
            self._same[same] = name
            found = words(question)
            for start, gram in enumerate(_grams(found)):
                if len(places[gram]) <= MOST_PLACES:
                    places[gram].append((len(self._names), start))
            self._names.append(name)
            self._lengths.append(len(found))
        self._places = {gram: there for gram, there in places.items() if len(there) <= MOST_PLACES}

    def __len__(self) -> int:
        """How many different questions there are."""
        return len(self._names)

    def match(self, question: str, same: str = "") -> Match | None:
        """What a training question repeats, the evaluation question that it covers most of; None where nothing. same:
        its `text.key`, where that is known."""
        if self._names and (name := self._same.get(same or key(question))) is not None:
            return Match("same", name, 1.0)
        if not self._places:
            return None
        begun: defaultdict[int, set[int]] = defaultdict(set)
        for gram in set(_grams(words(question))):
            for evaluation, start in self._places.get(gram, ()):
                begun[evaluation].add(start)
        best = max(((_covered(starts) / self._lengths[n], n) for n, starts in begun.items()), default=(0.0, 0))
        return Match("13-gram", self._names[best[1]], best[0]) if best[0] > SHARE else None


def _grams(found: list[str]) -> Iterable[Gram]:
    return (tuple(found[n : n + RUN]) for n in range(len(found) - RUN + 1))


def _covered(starts: set[int]) -> int:
    """Words that runs from these places cover."""
    total, end = 0, 0
    for start in sorted(starts):
        total += start + RUN - max(start, end)
        end = start + RUN
    return total
