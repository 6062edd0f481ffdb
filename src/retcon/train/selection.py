"""The groups of a step, and what of them is trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.select.drop import drop_infrastructure, take
from retcon.select.dynamic import DynamicSampling, informative
from retcon.select.roc import roc
from retcon.tasks.types import Task
from retcon.train.rollouts import TrainingRollouts


@dataclass(frozen=True, slots=True)
class Drawn:
    """The groups of a step, in the order in which their prompts were drawn.

    made: all rollouts, (groups, G'). kept: what selection left of each, (groups, up to G), none where faults left fewer
    than two. rounds: how often more prompts were drawn.
    """

    made: list[list[Trajectory]]
    kept: list[list[Trajectory]]
    rounds: int = 0


async def draw_groups(recipe: Recipe, rollouts: TrainingRollouts, prompts: Iterator[Task], *, step: int) -> Drawn:
    """Rolls out the step's prompts; with dynamic sampling more, until enough groups teach something or a bound is met.

    Raises SandboxUnavailable where the first prompts lose all of their groups to faults.
    """
    dynamic = dynamic_sampling(recipe)
    made: list[list[Trajectory]] = []
    kept: list[list[Trajectory]] = []
    missing, rounds = recipe.rl.prompts, 0
    while True:
        drawn = list(islice(prompts, missing))
        if len(drawn) < missing:
            raise RecipeError(f"step {step}: the prompts have come to an end; give run_rl a task set that goes on")
        fresh = await rollouts.of(drawn, step=step)
        made += fresh
        kept += [_select(recipe, drop_infrastructure(group), step) for group in fresh]
        if not any(kept):
            raise SandboxUnavailable(
                f"step {step}: infrastructure faults left fewer than two rollouts of every group; see `retcon doctor`, "
                "then run the same command again to go on"
            )
        missing = dynamic.to_draw(kept, rounds=rounds) if dynamic else 0
        if not missing:
            return Drawn(made, kept, rounds)
        rounds += 1


def to_train(recipe: Recipe, drawn: Drawn) -> list[list[Trajectory]]:
    """The groups that an update is made of: with dynamic sampling those that teach something, else all that are left.

    A group whose rewards are all equal has no gradient, but counts where the loss is averaged over ids or samples.
    """
    return [group for group in drawn.kept if (informative(group) if recipe.select.dynamic else group)]


def selection_metrics(recipe: Recipe, drawn: Drawn) -> dict[str, float]:
    """Metrics of a step's groups.

    kept: rollouts that are trained on. groups_skipped: groups of which faults left fewer than two rollouts.
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
    return DynamicSampling(prompts, extra=math.floor(section.max_extra * prompts), rounds=section.max_rounds)


def _select(recipe: Recipe, group: Sequence[Trajectory], step: int) -> list[Trajectory]:
    """G of the G' rollouts of a prompt."""
    section = recipe.select
    if section.kind == "none" or not group:
        return take(group, recipe.rl.group)
    return roc(
        group,
        recipe.rl.group,
        seed=derive("select", recipe.run.seed, step, group[0].task),
        draw=section.draw,
        min_positive=section.min_positive,
        min_negative=section.min_negative,
    )
