"""Rollout strategies: where the rollouts of a group start or branch off."""

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
from retcon.core.types import Measure, Trajectory
from retcon.engine.types import Generation


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Mean uncertainty of a turn's first tokens, in nats per token.

    measure: entropy, or, from an engine without entropies, the surprisal -log π of the sampled tokens, whose mean it is
    at T = 1 without truncation.
    """

    nats: float
    measure: Measure


def uncertainty(generation: Generation, tokens: int) -> Uncertainty:
    """Return the uncertainty of a generation's first `tokens` tokens.

    Raises EngineError if the engine gives neither entropies nor log-probs.
    """
    if generation.entropies:
        return Uncertainty(fmean(generation.entropies[:tokens]), "entropy")
    if not generation.logprobs:
        raise EngineError("strategy.kind: rollouts branch by entropies or log-probs, and this engine gives neither")
    return Uncertainty(-fmean(generation.logprobs[:tokens]), "surprisal")


@dataclass(frozen=True, slots=True)
class Point:
    """A possible branch point: after a tool's answer, once the model has begun its next turn.

    turn: index from 0. nats: its uncertainty; first: that of the tree's first turn. vocabulary: its size. in_a_row:
    consecutive branch points just before it on this path. left: branches that the tree may still have. failed: whether
    a call of the turn before it failed.
    """

    turn: int
    nats: float
    first: float
    vocabulary: int
    in_a_row: int
    left: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """Uncertainty of one rollout: of its first turn, and of the turns after tools' answers (nats per token)."""

    first: float
    later: Sequence[float]
    vocabulary: int


class Strategy(Protocol):
    """Decides where the rollouts of a group branch. Stateless: calls come in any order."""

    @property
    def measures(self) -> bool:
        """Whether one rollout must end before `from_start` is called."""
        ...

    @property
    def entropy_tokens(self) -> int:
        """Tokens of a turn whose uncertainty counts."""
        ...

    def from_start(self, count: int, measured: Measured | None) -> int:
        """Return how many of `count` rollouts start at the prompt. measured: the first one, if `measures`."""
        ...

    def branches(self, point: Point, draw: random.Random) -> int:
        """Return how many rollouts branch off here. draw: source of randomness."""
        ...

    def resume(self, rollouts: Sequence[Trajectory]) -> Sequence[tuple[int, int]]:
        """Choose finished rollouts to resume, each with the turns to share.

        Called with the group's graded rollouts, in order, when none is running, until it chooses none or no rollout of
        the group is left to begin.
        """
        ...


# ARPO's rule (arXiv 2507.19849): P = α + β ΔH. H is the entropy of the first tokens after a tool's answer, ΔH its rise
# over that of the rollout's first tokens, both summed over the tokens and divided by the logarithm of the vocabulary.
# The paper branches where P is above a threshold; its code, with the published models' scripts, branches with
# probability P (with entropies of the ten most probable tokens, of the turn before the tool's answer). The mean of a
# turn with fewer tokens stands for the missing ones.


def check_initial(initial: int, recipe: Recipe) -> None:
    """Check that at most a prompt's rollouts start at it; else raise ValueError."""
    made = recipe.select.made(recipe.rl.group)
    if initial > made:
        raise ValueError(
            f"strategy: initial = {initial} is more than the {made} rollouts of a prompt (rl.group, [select])"
        )


class UncertainSection(StrategySection):
    """Keys and rule of strategies that branch where entropy rises."""

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
        """Sum over entropy_tokens, in units of log(vocabulary). nats: per token."""
        return self.entropy_tokens * nats / math.log(vocabulary)

    def chance(self, point: Point) -> float:
        """Return the branching probability P, within [0, 1]."""
        rise = self.summed(point.nats - point.first, point.vocabulary)
        return min(1.0, max(0.0, self.probability + self.entropy_weight * rise))

    def branches(self, point: Point, draw: random.Random) -> int:
        chance = self.chance(point)
        if self.threshold:
            return min(self.siblings, point.left) if chance > self.threshold else 0
        return min(sum(draw.random() < chance for _ in range(self.siblings)), point.left)
