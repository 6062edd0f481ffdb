"""GRPO-RoC: selection of clean rollouts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from retcon.config.schema import Recipe, SelectSection
from retcon.config.section import NonNegative, Rate
from retcon.core.types import Trajectory

# GRPO-RoC, resample on correct (rStar2-Agent, arXiv 2508.20722, section 2.2.3): of the right rollouts, the clean ones.
#
# Of 2G rollouts the paper keeps G: half of the wrong ones, rounded down, as they come, so that failures stay diverse;
# the others are right ones, drawn with a probability inverse to their penalty p_err + p_format (equations 4 and 5). It
# is silent on other ratios, on minimum counts, on a penalty of zero, which has no inverse, and on purified histories.
#
# The published code (microsoft/rStar, `down_sample/roc.py`) differs from the paper, and we from it:
#
# - It sorts both sides by penalty and takes the first: nothing is drawn, and the tidiest failures are kept. Here `rank`
#   does so for the right ones, ties broken by the seed; `weighted` is the paper's; failures are uniform in both.
# - It finds an error by the word in a tool's text; here the tool's typed status says so.
# - It counts turns by their headers in the response, which the first turn lacks: a right answer in one turn has
#   p_format 1. Here a turn is a turn.
# - It rounds both shares to even, by themselves: one right rollout of 16 is not kept. Here, as in the paper, it is.
# - It drops groups without reward variance first (see `retcon.select.filters`), and those smaller than G, here
#   kept whole; it keeps all 2G if neither side's share reaches its minimum.

NO_CALL_PENALTY = 0.5
WEIGHT_FLOOR = 0.1  # added to a penalty before it is inverted: a clean rollout is then 21 times as likely as the worst

CountAnswers = Callable[[Trajectory], int]
Failures = Literal["purified", "raw"]
"""Which failed calls a penalty counts: those of the purified history, or all that happened."""


def count_boxed(trajectory: Trajectory) -> int:
    r"""Count how often the model wrote `\boxed{`."""
    return sum(turn.text.count("\\boxed{") for turn in trajectory.turns)


def penalty(
    trajectory: Trajectory, count_answers: CountAnswers = count_boxed, failures: Failures = "purified"
) -> float:
    """Return a rollout's penalty in [0, 2]: p_err + p_format of the paper.

    p_err: failed calls / calls, 0.5 without a call. p_format: 1 without an answer, else min(1, (answers - 1) / turns).
    The papers have no purified histories. With `purified`, p_err counts their failures: it keeps failures out of
    training, and a replaced one is not trained on. With `raw`, it counts the calls as they happened: of two rollouts
    that look alike, the one that needed no repair is kept.
    """
    raw = failures == "raw"
    calls = trajectory.raw_calls if raw else trajectory.calls
    errors = (trajectory.raw_failures if raw else trajectory.failures) / calls if calls else NO_CALL_PENALTY
    answers = count_answers(trajectory)
    repeats = min(1.0, (answers - 1) / len(trajectory.turns)) if answers else 1.0
    return errors + repeats


def roc(
    group: Sequence[Trajectory],
    keep: int,
    *,
    seed: int,
    draw: Literal["rank", "weighted"] = "rank",
    min_positive: int = 0,
    min_negative: int = 0,
    count_answers: CountAnswers = count_boxed,
    failures: Failures = "purified",
) -> list[Trajectory]:
    """Select `keep` (G) rollouts of an oversampled group (G'), in order.

    Positives (reward > 0): `rank` takes those with the least penalty, ties broken by the seed; `weighted` draws without
    replacement with weights 1 / (penalty + 0.1). Negatives: uniformly at random. Each side keeps its share of `keep`,
    but at least its minimum while it has that many; one side fills what the other lacks, so that a group of one kind
    still gives `keep`. failures: see `penalty`. Raises ValueError if a reward is missing or the minima exceed `keep`.
    """
    if min_positive + min_negative > keep:
        raise ValueError(
            f"min_positive {min_positive} + min_negative {min_negative} exceed the {keep} rollouts to keep"
        )
    positives: list[int] = []
    negatives: list[int] = []
    for i, trajectory in enumerate(group):
        if trajectory.reward is None:
            raise ValueError(f"trajectory {trajectory.id} has no reward: drop infrastructure faults first")
        (positives if trajectory.reward > 0 else negatives).append(i)
    if len(group) <= keep:
        return list(group)
    rng = random.Random(seed)
    count = _positives_kept(len(positives), len(negatives), keep, min_positive, min_negative)
    rng.shuffle(positives)
    order = {i: penalty(group[i], count_answers, failures) for i in positives}
    if draw == "weighted":
        # Efraimidis and Spirakis: the largest u ** (1 / weight) are drawn, and 1 / weight is penalty + floor.
        order = {i: -(rng.random() ** (p + WEIGHT_FLOOR)) for i, p in order.items()}
    kept = sorted(positives, key=order.__getitem__)[:count] + rng.sample(negatives, keep - count)
    return [group[i] for i in sorted(kept)]


def _positives_kept(positives: int, negatives: int, keep: int, min_positive: int, min_negative: int) -> int:
    """Return the positives' share of `keep`, rounded half up, within both sides' counts and minima."""
    share = (2 * keep * positives + positives + negatives) // (2 * (positives + negatives))
    wanted = min(max(share, min_positive), keep - min_negative)
    return max(keep - negatives, min(wanted, positives))


class RocSection(SelectSection):
    """`kind = "roc"`: see `roc`."""

    mechanisms: ClassVar = {
        **SelectSection.mechanisms,
        "kind": ("no right rollout was dropped for a penalty above those of the right ones kept", "dropped_penalty"),
    }
    reasons: ClassVar = ("penalty", "drawn", "wrong")
    oversample: Rate = Field(2.0, ge=1, description="G' / G: rollouts made for each one kept")
    draw: Literal["rank", "weighted"] = "rank"
    failures: Failures = Field("purified", description="which failed calls the penalty counts: those of the purified "
                               "history, or raw: all that happened")  # fmt: skip
    min_positive: NonNegative = 0
    min_negative: NonNegative = 0

    def check(self, recipe: Recipe) -> None:
        if self.min_positive + self.min_negative > recipe.rl.group:
            raise ValueError(
                f"select: min_positive {self.min_positive} + min_negative {self.min_negative} exceed "
                f"rl.group = {recipe.rl.group}, the rollouts that are kept"
            )

    def made(self, keep: int) -> int:
        return math.ceil(round(keep * self.oversample, 6))  # 50 × 1.1 is 55.00000000000001

    def select(self, group: Sequence[Trajectory], keep: int, *, seed: int) -> list[Trajectory]:
        return roc(
            group,
            keep,
            seed=seed,
            draw=self.draw,
            min_positive=self.min_positive,
            min_negative=self.min_negative,
            failures=self.failures,
        )

    def why(self, dropped: Sequence[Trajectory], kept: Sequence[Trajectory]) -> list[str]:
        """Return reasons. `penalty`: right, with a penalty above all right ones kept; `drawn`: other right; `wrong`."""
        found = [penalty(t, failures=self.failures) if (t.reward or 0) > 0 else None for t in (*kept, *dropped)]
        most = max((p for p in found[: len(kept)] if p is not None), default=math.inf)
        return ["wrong" if p is None else "penalty" if p > most else "drawn" for p in found[len(kept) :]]
