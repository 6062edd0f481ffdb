"""Settle a recipe in stages: the lengths of each, and the tasks that each trains on. Imports no torch."""

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
from retcon.train.prompts import refuse_idle_bounds


@dataclass(frozen=True, slots=True)
class Settled:
    """recipe: with the lengths that it left open, its own and its stages', as if they had been written. tasks: those
    that evaluations are of. derived: which lengths those are, of the recipe, and of each stage where they are others.
    each: the stages, with the tasks that each trains on."""

    recipe: Recipe
    tasks: TaskSet
    derived: tuple[str, ...]
    each: tuple[tuple[Stage, TaskSet], ...]

    @property
    def needs_reference(self) -> bool:
        """Whether some stage has a penalty to the model that the run starts from."""
        return any(stage.recipe.rl.kl for stage, _ in self.each)

    def with_steps(self, steps: int) -> Settled:
        """Return this for a run without stages, with another rl.steps."""
        recipe = self.recipe.model_copy(update={"rl": self.recipe.rl.model_copy(update={"steps": steps})})
        return replace(self, recipe=recipe, each=tuple((stage, self.tasks) for stage in stages_of(recipe)))


def settle_stages(recipe: Recipe, folder: Path, tasks: TaskSet | None = None) -> Settled:
    """folder: of the model. tasks: a task set of the caller's own, in place of the recipe's.

    Raises RecipeError where stages have others than that one, and what `refuse_unlearnable`, `refuse_rollouts`,
    `build_tasks` and `resolve_lengths` raise.
    """
    refuse_unlearnable(recipe)
    refuse_rollouts(recipe)
    own_tasks = tasks is not None
    base = build_tasks(recipe, folder) if tasks is None else tasks
    whole, derived = (recipe, []) if own_tasks else resolve_lengths(recipe, folder, base)
    sets, told, sections = [(recipe.task, base)], [str(one) for one in derived], []
    for stage, section in zip(stages_of(recipe), recipe.stages, strict=False):  # without stages there is one of none
        if stage.recipe.task not in [about for about, _ in sets]:
            if own_tasks:
                raise RecipeError(f"{stage} changes [task], but the run was given a task set of its own")
            sets.append((stage.recipe.task, build_tasks(stage.recipe, folder)))
        found = [] if own_tasks else resolve_lengths(stage.recipe, folder, _of(stage, sets))[1]
        others = [one for one in found if one not in derived]
        sections.append(_with_lengths(section, others))
        told += [f"{stage}: {one}" for one in others]
    if sections:
        whole = whole.model_copy(update={"stages": tuple(sections)})
    return Settled(whole, base, tuple(told), tuple((stage, _of(stage, sets)) for stage in stages_of(whole)))


def settle_run(recipe: Recipe, folder: Path, out: Path) -> Settled | None:
    """Settle a run of the model in `folder` that begins or goes on in `out`; None where it is finished there.

    Raises what the run would before it computes, without torch: for the place, a recipe that differs, another model,
    another process at work, names, data and lengths.
    """
    recipe.engine.check_training(recipe)
    left_open = ["task.name", *open_keys(recipe)]
    check_free(out, "rl", recipe, skip=left_open)
    if RunFolder(out).finished and not longer_than(out, "rl", recipe):
        check_free(out, "rl", recipe, inputs={"start": fingerprint(folder)}, skip=left_open)
        return None
    return settle_stages(recipe, folder)


def refuse_unlearnable(recipe: Recipe) -> None:
    """Raises RecipeError where a stage has greedy rollouts, bounds of pass rates and no file of them, or what takes the
    log-probs that rollouts came with for those of another temperature than 1."""
    for stage in stages_of(recipe):
        where = f"{stage}: " if stage.name else ""
        refuse_idle_bounds(stage.recipe.select, where)
        rl, temperature = stage.recipe.rl, stage.recipe.rollout.temperature
        if temperature < GREEDY_BELOW:
            raise RecipeError(
                f"{where}rollout.temperature = {temperature:g} is greedy: all rollouts of a group are alike, and "
                "nothing can be learnt from them; take 1"
            )
        against = {"max_staleness": rl.max_staleness, "correction": rl.correction != "none" and rl.correction}
        if temperature != 1 and (key := next((key for key, value in against.items() if value), None)):
            raise RecipeError(
                f"{where}rl.{key} = {against[key]} goes by the log-probs that rollouts come with, which are of "
                f"temperature 1, and rollout.temperature = {temperature:g}: set one of them back"
            )


def refuse_rollouts(recipe: Recipe) -> None:
    """Raises RecipeError where the tasks of a stage, or of the evaluations, cannot be rolled out as the recipe says
    (`TaskSection.check_rollouts`, and of a stage `check_branching`)."""
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
