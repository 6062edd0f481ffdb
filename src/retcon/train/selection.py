"""What of a step's groups is trained on, and what dynamic sampling draws besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.select.dynamic import DynamicSampling, informative


@dataclass(slots=True)
class Drawn:
    """The groups of a step, in the order in which their prompts were drawn.

    made: all rollouts, (groups, G'). kept: what selection left of each, (groups, up to G), none where faults and masks
    left fewer than two (`comparable`). rounds: how often more prompts were drawn.
    """

    made: list[list[Trajectory]] = field(default_factory=list)
    kept: list[list[Trajectory]] = field(default_factory=list)
    rounds: int = 0

    def add(self, made: Sequence[Trajectory], kept: Sequence[Trajectory]) -> None:
        self.made.append(list(made))
        self.kept.append(list(kept))


def to_train(recipe: Recipe, drawn: Drawn) -> list[list[Trajectory]]:
    """The groups that an update is made of: with dynamic sampling those that teach something, else all that are left.

    A group whose rewards are all equal has no gradient, but counts where the loss is averaged over ids or samples.
    """
    return [group for group in drawn.kept if (informative(group) if recipe.select.dynamic else group)]


def selection_metrics(recipe: Recipe, drawn: Drawn) -> dict[str, float]:
    """Metrics of a step's groups.

    kept: rollouts that are trained on. groups_skipped: groups of which faults and masks left fewer than two.
    groups_flat: those whose rewards are all equal, after selection. extra_groups, extra_rollouts, extra_rounds: what
    dynamic sampling cost. groups_short: by how many informative groups the step stayed behind at its bound.
    """
    prompts = recipe.rl.prompts
    told = sum(map(informative, drawn.kept))
    skipped = sum(not group for group in drawn.kept)
    return {
        "kept": sum(map(len, to_train(recipe, drawn))),
        "groups_skipped": skipped,
        "groups_flat": len(drawn.kept) - skipped - told,
        "extra_groups": len(drawn.made) - prompts,
        "extra_rollouts": sum(map(len, drawn.made[prompts:])),
        "extra_rounds": drawn.rounds,
        "groups_short": max(0, prompts - told) if recipe.select.dynamic else 0,
    }


def dynamic_sampling(recipe: Recipe) -> DynamicSampling | None:
    """The dynamic sampling that a recipe asks for."""
    section, prompts = recipe.select, recipe.rl.prompts
    if not section.dynamic:
        return None
    return DynamicSampling.bounded(prompts, section.max_extra, section.max_rounds)
