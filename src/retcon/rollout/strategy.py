"""Rollout strategies: how many rollouts of a prompt begin with it, and where others branch off."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Protocol

from pydantic import Field

from retcon.config.schema import Recipe, StrategySection
from retcon.config.section import Positive, Probability
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


# What strategies have in common that branch where the model has become unsure: ARPO's rule (arXiv 2507.19849).
#
# P = α + β ΔH: H is the entropy of the first tokens after a tool's answer, ΔH its rise over that of the rollout's first
# tokens, both summed over the tokens and divided by the logarithm of the vocabulary's size. The paper branches where P
# is above a threshold; its code, with the scripts of the published models, branches with P as the probability (it takes
# the entropies of the ten most probable tokens, and of the turn before the tool's answer, not of the one after it). A
# turn that is shorter than the tokens that are looked at counts as if it went on like that.


def refuse_more_than_made(initial: int, recipe: Recipe) -> None:
    """Raises ValueError where more rollouts are to begin with a prompt than are made of it."""
    made = recipe.select.made(recipe.rl.group)
    if initial > made:
        raise ValueError(
            f"strategy: initial = {initial} is more than the {made} rollouts that are made of a prompt (rl.group, "
            "[select])"
        )


class UncertainSection(StrategySection):
    """Keys and rule of such a strategy, which says how many rollouts begin with the prompt."""

    branching: ClassVar[bool] = True
    mechanisms: ClassVar = {"kind": ("no rollout branched off another one", "branches")}
    entropy_tokens: Positive = Field(20, description="k: tokens after a tool's answer, and of the first turn, whose "
                                     "entropy is compared")  # fmt: skip
    siblings: Positive = Field(1, description="Z: rollouts that may branch off at one point")
    probability: Probability = Field(0.5, description="α: of a branch where the entropy did not rise")
    entropy_weight: float = Field(0.2, ge=0, description="β: of the entropy's rise, summed over those tokens, over the "
                                  "log of the vocabulary's size")  # fmt: skip
    threshold: Probability = Field(0.0, description="rollouts branch where α + β ΔH is above it, as in the paper; 0: "
                                   "with that as their probability, as in the published code")  # fmt: skip

    def summed(self, nats: float, vocabulary: int) -> float:
        """An entropy, or a rise of one, of all tokens that are looked at. nats: of one."""
        return self.entropy_tokens * nats / math.log(vocabulary)

    def chance(self, point: Point) -> float:
        """P, within [0, 1]."""
        rise = self.summed(point.nats - point.first, point.vocabulary)
        return min(1.0, max(0.0, self.probability + self.entropy_weight * rise))

    def branches(self, point: Point, draw: random.Random) -> int:
        chance = self.chance(point)
        if self.threshold:
            return min(self.siblings, point.left) if chance > self.threshold else 0
        return min(sum(draw.random() < chance for _ in range(self.siblings)), point.left)
