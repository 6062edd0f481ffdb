"""What a trained model does: a few problems that no training saw, solved greedily, to be read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from retcon.build import build_chat, build_plain_sampling, build_policy, open_context, open_graders
from retcon.config.schema import Recipe
from retcon.core.types import Trajectory
from retcon.rollout.group import rollout_groups
from retcon.rollout.prompts import fitting
from retcon.runs.folder import RunFolder
from retcon.store import jsonl
from retcon.tasks.registry import TaskSet


@dataclass(frozen=True, slots=True)
class Samples:
    """passed: of `total`, how many the grader took. lost: to infrastructure faults. file: where they are."""

    passed: int
    total: int
    lost: int
    file: Path


def sample_final(recipe: Recipe, run: RunFolder, tasks: TaskSet) -> Samples:
    """Greedy rollouts of the final model on `sft.samples` evaluation problems, without a repair; those of a finished
    run that has them are read. Raises RecipeError where no prompt leaves room to answer, SandboxUnavailable."""
    file = run.trajectories(recipe.sft.steps)
    if not file.exists():
        run.keep_trajectories(recipe.sft.steps, asyncio.run(_rolled(recipe, run.final, tasks)))
    made = list(jsonl.read(file))
    return Samples(sum((t.reward or 0) > 0 for t in made), len(made), sum(t.reward is None for t in made), file)


async def _rolled(recipe: Recipe, final: Path, family: TaskSet) -> list[Trajectory]:
    chat = build_chat(recipe, final, family)
    tasks = list(fitting(family.evaluation(recipe.sft.samples, recipe.evaluate.seed), chat, recipe.rollout.max_tokens))
    engine = build_policy(recipe, final, chat)
    greedy = replace(build_plain_sampling(recipe), temperature=0.0)
    async with open_context(recipe, engine, chat) as opened, open_graders(family) as graders:
        context = replace(opened, sampling=greedy, model=str(final))
        groups = await rollout_groups(
            tasks, context, count=1, seed=recipe.evaluate.seed, step=recipe.sft.steps, grade=graders.judged.grade
        )
    return [trajectory for (trajectory,) in groups]
