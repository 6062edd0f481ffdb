"""What a trained model does: a few problems that no training saw, solved greedily, to be read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from retcon.build import (
    build_chat,
    build_plain_sampling,
    build_policy,
    build_tasks,
    open_context,
    open_graders,
    settle,
)
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.types import Trajectory
from retcon.engine.kinds.local import LocalSection
from retcon.models.loading import load_config, positions
from retcon.planning.rolling import refuse_unfit_rollouts
from retcon.rollout.group import rollout_groups
from retcon.rollout.prompts import fitting
from retcon.runs.folder import RunFolder
from retcon.store import jsonl
from retcon.tasks.checked import held_out
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task


@dataclass(frozen=True, slots=True)
class ToSample:
    """tasks: those of `family` whose prompts leave room to answer. recipe: with no length left open."""

    recipe: Recipe
    family: TaskSet
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True)
class Samples:
    """passed: of `total`, how many the grader took. lost: to infrastructure faults. file: where they are."""

    passed: int
    total: int
    lost: int
    file: Path


def to_sample(recipe: Recipe, folder: Path, out: Path) -> ToSample | None:
    """`sft.samples` evaluation problems for what the model in `folder` will become, None where none are wanted. out:
    of the run. Raises RecipeError where there is none, no prompt leaves room to answer, the model has fewer positions
    than the recipe's rollouts may have tokens, or memory does not hold these and the run is not finished, and what
    `build_tasks` raises."""
    if not recipe.sft.samples:
        return None
    family = build_tasks(recipe, folder)
    recipe, _ = settle(recipe, folder, family)
    _refuse_beyond(recipe, folder)
    if not RunFolder(out).finished:
        refuse_unfit_rollouts(recipe, folder)
    asked = held_out(recipe, family, recipe.sft.samples)
    fit = fitting(asked, build_chat(recipe, folder, family), recipe.rollout.max_tokens)
    return ToSample(recipe, family, tuple(fit))


def _refuse_beyond(recipe: Recipe, folder: Path) -> None:
    """Raises RecipeError where the local engine would refuse the model for its positions, once it has been trained."""
    limit = positions(load_config(folder))
    most = recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens
    if isinstance(recipe.engine, LocalSection) and limit is not None and most > limit:
        raise RecipeError(
            f"sft.samples = {recipe.sft.samples}: rollout.max_tokens + rollout.lookahead_tokens = {most}, and the "
            f"model has {limit} positions: lower them, or leave sft.samples out"
        )


def sample_final(wanted: ToSample, run: RunFolder) -> Samples:
    """Greedy rollouts of the final model on these problems, without a repair; those of a finished run that has them are
    read. Raises SandboxUnavailable."""
    steps = wanted.recipe.sft.steps
    file = run.trajectories(steps)
    if not file.exists():
        run.keep_trajectories(steps, asyncio.run(_rolled(wanted, run.final)))
    made = list(jsonl.read(file))
    return Samples(sum((t.reward or 0) > 0 for t in made), len(made), sum(t.reward is None for t in made), file)


async def _rolled(wanted: ToSample, final: Path) -> list[Trajectory]:
    recipe, family = wanted.recipe, wanted.family
    chat = build_chat(recipe, final, family)
    engine = build_policy(recipe, final, chat)
    greedy = replace(build_plain_sampling(recipe), temperature=0.0)
    async with open_context(recipe, engine, chat) as opened, open_graders(family) as graders:
        context = replace(opened, sampling=greedy, model=str(final))
        groups = await rollout_groups(
            wanted.tasks, context, count=1, seed=recipe.evaluate.seed, step=recipe.sft.steps, grade=graders.judged.grade
        )
    return [trajectory for (trajectory,) in groups]
