"""BranPO (arXiv 2602.03719): finished rollouts resume near their end, until one ends otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import ClassVar

from pydantic import Field

from retcon.config.schema import Recipe, StrategySection
from retcon.config.section import Positive
from retcon.core.types import Trajectory
from retcon.rollout.strategy import Measured, check_initial


class BranPO(StrategySection):
    """`kind = "branpo"`, whose credit is `rl.step_advantage = "branpo"`.

    Which rollouts resume, how often, and how many turns before their end follows the published code
    (github.com/YubaoZhao/BranPO, 7863ebc). It tries one rollout's continuations in turn; here each round takes one of
    every rollout.
    """

    branching: ClassVar[bool] = True
    mechanisms: ClassVar = {"kind": ("no finished rollout was resumed", "branches")}
    initial: Positive = Field(4, description="rollouts that begin with the prompt; what is left of the group resumes "
                              "some of these near their end, or begins there too in the end")  # fmt: skip

    def check(self, recipe: Recipe) -> None:
        check_initial(self.initial, recipe)

    @property
    def entropy_tokens(self) -> int:
        return 20  # for the metrics alone

    def from_start(self, count: int, measured: Measured | None) -> int:
        return self.initial

    def resume(self, rollouts: Sequence[Trajectory]) -> list[tuple[int, int]]:
        """Choose the next rollouts to resume. See `Strategy.resume`."""
        firsts = [one for one in rollouts if one.branch is None and one.reward is not None]
        right = [len(one.turns) for one in firsts if is_right(one)]
        share, turns = len(right) / len(firsts) if firsts else 0.0, fmean(right or [0])
        found = []
        for index, one in enumerate(rollouts):
            if one.branch is not None or one.reward is None or one.stop in ("length", "infrastructure"):
                continue
            tries = [other for other in rollouts if other.branch is not None and other.branch.parent == one.id]
            depths = _depths(share, right=is_right(one), beyond=len(one.turns) - turns)
            if len(tries) < len(depths) and not any(is_contrast(one, other, share) for other in tries):
                found.append((index, max(0, len(one.turns) - depths[len(tries)])))
        return found


def _depths(share: float, *, right: bool, beyond: float) -> tuple[int, ...]:
    """Return how many turns before its end each try resumes a rollout.

    Args:
        share: of the prompt's rollouts that are right.
        beyond: how many turns more it has than those have on average.
    """
    if share == 1:
        return (1,)
    if right and share > 0.5 and beyond >= 0.1:
        return (2,) * 5
    if share < 0.5 and not right:
        return (1, 1, 2, 2, 3, 3)
    return (1, 1, 2, 2) if share <= 0.75 or not right else ()


def is_right(rollout: Trajectory) -> bool:
    return (rollout.reward or 0.0) > 0


def is_contrast(one: Trajectory, other: Trajectory, share: float) -> bool:
    """Return whether two rollouts with one beginning end differently.

    Where more than half of a prompt's rollouts are right, and not all, a right one with another number of turns does.
    """
    if is_right(one) != is_right(other):
        return True
    return 0.5 < share < 1 and is_right(one) and len(one.turns) != len(other.turns)
