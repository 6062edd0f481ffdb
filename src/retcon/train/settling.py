"""Resolved recipes: lengths and tasks of each stage. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retcon.build import build_tasks, resolve_lengths, with_evaluation_repair
from retcon.config.schema import Changes, Recipe, Stage, StageSection, TaskSection, stages_of
from retcon.core.errors import RecipeError
from retcon.engine.types import GREEDY_BELOW
from retcon.rollout.lengths import DerivedLength, open_keys
from retcon.runs.folder import RunFolder, check_free, longer_than
from retcon.store.fingerprint import fingerprint
from retcon.tasks.registry import TaskSet
from retcon.train.prompts import check_rate_bounds


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A resolved recipe. recipe: with all lengths that it and its stages left open. tasks: the evaluation's. derived:
    descriptions of these lengths, of the recipe, and of stages where they differ. each: the stages, with their tasks.
    """

    recipe: Recipe
    tasks: TaskSet
    derived: tuple[str, ...]
    each: tuple[tuple[Stage, TaskSet], ...]

    @property
    def needs_reference(self) -> bool:
        """Whether a stage has a KL penalty to the initial model."""
        return any(stage.recipe.rl.kl for stage, _ in self.each)

    def with_steps(self, steps: int) -> ResolvedRun:
        """Return this for a run without stages, with another rl.steps."""
        recipe = self.recipe.model_copy(update={"rl": self.recipe.rl.model_copy(update={"steps": steps})})
        return replace(self, recipe=recipe, each=tuple((stage, self.tasks) for stage in stages_of(recipe)))


def resolve_stages(recipe: Recipe, folder: Path, tasks: TaskSet | None = None) -> ResolvedRun:
    """Resolve a recipe's lengths and tasks. folder: of the model. tasks: in place of the recipe's.

    Raises RecipeError if stages change the caller's tasks, and the errors of `check_learnable`, `check_rollouts`,
    `build_tasks` and `resolve_lengths`.
    """
    check_learnable(recipe)
    check_rollouts(recipe)
    own_tasks = tasks is not None
    base = build_tasks(recipe, folder) if tasks is None else tasks
    whole, derived = (recipe, []) if own_tasks else resolve_lengths(recipe, folder, base)
    sets, notes, sections = [(recipe.task, base)], [str(one) for one in derived], []
    for stage, section in zip(stages_of(recipe), recipe.stages, strict=False):  # `stages_of` always yields one
        if stage.recipe.task not in [about for about, _ in sets]:
            if own_tasks:
                raise RecipeError(f"{stage} changes [task], but the run was given its own task set")
            sets.append((stage.recipe.task, build_tasks(stage.recipe, folder)))
        found = [] if own_tasks else resolve_lengths(stage.recipe, folder, _of(stage, sets))[1]
        others = [one for one in found if one not in derived]
        sections.append(_with_lengths(section, others))
        notes += [f"{stage}: {one}" for one in others]
    if sections:
        whole = whole.model_copy(update={"stages": tuple(sections)})
    return ResolvedRun(whole, base, tuple(notes), tuple((stage, _of(stage, sets)) for stage in stages_of(whole)))


def resolve_run(recipe: Recipe, folder: Path, out: Path) -> ResolvedRun | None:
    """Resolve a run in `out`; return None if it is finished.

    Raises the run's own errors before it computes, without torch: for the folder, a different recipe or model, another
    process at work, names, data and lengths. folder: of the model.
    """
    recipe.engine.check_training(recipe)
    left_open = ["task.name", *open_keys(recipe)]
    check_free(out, "rl", recipe, skip=left_open)
    if RunFolder(out).finished and not longer_than(out, "rl", recipe):
        check_free(out, "rl", recipe, inputs={"start": fingerprint(folder)}, skip=left_open)
        return None
    return resolve_stages(recipe, folder)


def check_learnable(recipe: Recipe) -> None:
    """Check that stages can learn: no greedy rollouts, no bounds without pass rates, no use of rollouts' log-probs at
    another temperature than 1. Raises RecipeError."""
    for stage in stages_of(recipe):
        where = f"{stage}: " if stage.name else ""
        check_rate_bounds(stage.recipe.select, where)
        rl, temperature = stage.recipe.rl, stage.recipe.rollout.temperature
        if temperature < GREEDY_BELOW:
            raise RecipeError(
                f"{where}rollout.temperature = {temperature:g} is greedy: all rollouts of a group are equal, and "
                "nothing can be learnt from them; take 1"
            )
        against = {"max_staleness": rl.max_staleness, "correction": rl.correction != "none" and rl.correction}
        if temperature != 1 and (key := next((key for key, value in against.items() if value), None)):
            raise RecipeError(
                f"{where}rl.{key} = {against[key]} uses the log-probs of rollouts, which are of temperature 1, and "
                f"rollout.temperature = {temperature:g}: set one of them back"
            )


def check_rollouts(recipe: Recipe) -> None:
    """Check that the tasks of stages and evaluations allow rollouts. It calls `TaskSection.check_rollouts` and, for
    stages, `check_branching`. Raises RecipeError."""
    trained = [stage.recipe for stage in stages_of(recipe)]
    for one in (*trained, *([with_evaluation_repair(recipe)] if recipe.evaluate.every else ())):
        one.task.check_rollouts(one)
    for one in trained:
        one.task.check_branching(one)


def _of(stage: Stage, sets: Sequence[tuple[TaskSection, TaskSet]]) -> TaskSet:
    return next(own for about, own in sets if about == stage.recipe.task)


def _with_lengths(section: StageSection, derived: Sequence[DerivedLength]) -> StageSection:
    changes: dict[str, Changes] = {}
    for one in derived:
        name, _, key = one.key.partition(".")
        changes.setdefault(name, dict(getattr(section, name)))[key] = one.value
    return section.model_copy(update=changes)
