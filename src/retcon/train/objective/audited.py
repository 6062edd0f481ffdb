"""Advantages that RTMC and SDPO give failed turns, for the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from retcon.config.schema import Recipe
from retcon.core.types import Trajectory, to_sample, token_count
from retcon.models.devices import computing_of
from retcon.models.placing import place_training, start_model
from retcon.train.objective.contrast import make_hindsights, with_hindsight
from retcon.train.objective.credit import step_advantages

Groups = Sequence[Sequence[Trajectory]]
Turns = Sequence[tuple[str, int]]
"""Rollout and number, from 0, of each turn."""


def rtmc_pushes(groups: Groups, advantages: Sequence[Sequence[float]], turns: Turns) -> list[float]:
    """Return the advantage of each turn by `step_advantages`."""
    found = {
        rollout.id: steps
        for group, own in zip(groups, advantages, strict=True)
        for rollout, steps in zip(group, step_advantages(group, own), strict=True)
    }
    return [found[id][number] for id, number in turns]


def sdpo_pushes(model: Path, recipe: Recipe, groups: Groups, turns: Turns) -> list[float]:
    """Return the mean advantage of each turn's tokens by `with_hindsight`.

    It is 0 for a last turn. Teacher and log-probs are those of T = 1. Raises as `start_model` does.
    """
    rollouts = {rollout.id: rollout for group in groups for rollout in group}
    chosen = [rollouts[id] for id, _ in turns]
    samples = [
        replace(sample, advantages=(0.0,) * len(sample.ids), hindsights=make_hindsights(rollout))
        for rollout, sample in zip(chosen, map(to_sample, chosen), strict=True)
    ]
    where = place_training(recipe, model)
    policy = start_model(model, recipe.run.seed, where.attention, where.device)
    computing = computing_of(recipe.compute, where)
    made, _ = with_hindsight(policy, samples, computing, weight=1.0, limit=recipe.rl.sdpo_limit)
    found = []
    for rollout, sample, (_, number) in zip(chosen, made, turns, strict=True):
        before = [*rollout.prompt, *(s for turn in rollout.turns[:number] for s in turn.segments)]
        start, length = token_count(before), token_count(rollout.turns[number].segments)
        places = range(start, start + length)
        found.append(fmean((sample.advantages or ())[n] for n in places if sample.mask[n]))
    return found
