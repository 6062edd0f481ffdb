"""Rollout strategies: how many rollouts of a prompt begin with it, and where others branch off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from retcon.core.errors import EngineError
from retcon.core.types import Measure
from retcon.engine.types import Generation


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How unsure the model was at the first tokens of a turn: nats a token, mean. measure: the entropy of its
    distributions, or, from an engine that tells none, the surprisal -log π of what was drawn, which has the entropy as
    its mean at T = 1 where nothing is cut off."""

    nats: float
    measure: Measure


def uncertainty(generation: Generation, tokens: int) -> Uncertainty:
    """That of its first so many tokens, or of as many as there are. Raises EngineError where the engine tells neither
    entropies nor log-probs."""
    if generation.entropies:
        return Uncertainty(fmean(generation.entropies[:tokens]), "entropy")
    if not generation.logprobs:
        raise EngineError("strategy.kind: rollouts branch by entropies or log-probs, and this engine gives neither")
    return Uncertainty(-fmean(generation.logprobs[:tokens]), "surprisal")


@dataclass(frozen=True, slots=True)
class Point:
    """Where a rollout may be branched from: after a tool's answer, once the model has begun its next turn.

    turn: which one, from 0. nats: its uncertainty; first: that of the tree's first turn. vocabulary: tokens that there
    are. in_a_row: points just before it on this path at which rollouts branched off. left: that may branch off.
    """

    turn: int
    nats: float
    first: float
    vocabulary: int
    in_a_row: int
    left: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One rollout of the prompt. first: uncertainty of its first turn, nats a token. later: of the turns that followed
    a tool's answer. vocabulary: tokens that there are."""

    first: float
    later: Sequence[float]
    vocabulary: int


class Strategy(Protocol):
    """Decides where the rollouts of a group branch; it keeps no state, and is asked in no order that can be told."""

    @property
    def measures(self) -> bool:
        """Whether one rollout is to be over before it is decided how many others begin with the prompt."""
        ...

    @property
    def entropy_tokens(self) -> int:
        """Tokens of a turn that are looked at."""
        ...

    def from_start(self, count: int, measured: Measured | None) -> int:
        """How many of `count` rollouts begin with the prompt. measured: the first of them, where that was asked for."""
        ...

    def branches(self, point: Point, draw: random.Random) -> int:
        """How many rollouts branch off here. draw: where what is random comes from."""
        ...
