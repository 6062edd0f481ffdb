"""A run's stages, ready to train, with their tasks and prompts."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from retcon.build import build_chat, without_harness
from retcon.config.load import load_recipe
from retcon.config.schema import Changes, Recipe, Stage, stages_of
from retcon.core.errors import RecipeError, RetconError
from retcon.core.texts import counted
from retcon.models.devices import Placement
from retcon.models.placing import place_training
from retcon.planning.needs import Needs, check_fits_later, needs_of
from retcon.rollout.lengths import check_lengths
from retcon.runs.folder import NOT_THERE, WEIGHTS, check_free
from retcon.store.fingerprint import fingerprint, ids_fingerprint
from retcon.tasks.registry import TaskSet, class_path, evaluation_tasks, is_user_class, problems_of, training_prompts
from retcon.tasks.types import Task, fingerprint_of
from retcon.train.prompts import LOOK, Position, PromptStream
from retcon.train.settling import ResolvedRun, resolve_stages

# Evaluations use the recipe without its stages' changes: the same problems, limits and tools in all of them.


class RunStages:
    """The stages of one run. model: fingerprint of the one that it starts from. inputs: their data besides the recipe,
    name to fingerprint; NOT_THERE for pass rates of a later stage that are not measured yet. look: steps of each stage
    whose tasks are examined, None for as many as a run examines, as in `inputs`.

    Raises RecipeError, RecordError as `PromptStream`; RecipeError if a stage's data hold problems of the evaluation, if
    the evaluation has no problems, or one leaves no room to answer.
    """

    def __init__(self, settled: ResolvedRun, folder: Path, *, model: str, look: int | None = None) -> None:
        self.recipe, self.tasks, self._each = settled.recipe, settled.tasks, settled.each
        self.needs_reference = settled.needs_reference
        self._folder, self._model, self._look = folder, model, look
        self.inputs: dict[str, str] = {}
        self._streams: list[PromptStream | None] = []
        recipe = self.recipe
        apart = any(stage.recipe.task != recipe.task for stage, _ in self._each)
        problems: list[Task] = []
        if recipe.evaluate.every:
            problems = problems_of(recipe, self.tasks)
        elif apart or is_user_class(self.tasks):
            problems = evaluation_tasks(self.tasks, recipe.evaluate.problems, recipe.evaluate.seed)
        if recipe.evaluate.every:
            check_lengths(problems, build_chat(recipe, folder, self.tasks), recipe.rollout.max_tokens, "problems")
        for number, (stage, tasks) in enumerate(self._each):
            if stage.recipe.task != recipe.task:
                most = LOOK if look is None else self._steps(stage) * stage.recipe.rl.prompts
                _check_shared(stage, tasks, problems, most)
            elif is_user_class(tasks):
                _check_own(stage, tasks, problems, self._steps(stage))
            missing = number > 0 and not self._rates_there(stage)
            stream = None if missing else self._stream(number)
            self._streams.append(stream)
            suffix = f" of {stage}" if number else ""
            found = stream.inputs if stream else {**self._stream(number, rates=False).inputs, "pass rates": NOT_THERE}
            if self._earlier(number):
                found = {name: value for name, value in found.items() if name != "tasks"}  # as in the stage before
            self.inputs |= {f"{name}{suffix}": value for name, value in found.items()}

    @property
    def rendered(self) -> str:
        """A hash of each stage's first prompt, with its tools and template; without stages of harnesses, which make
        their own prompts."""
        own = (stage for stage, _ in self._each if not stage.recipe.rollout.harness)
        return ids_fingerprint(self.stream(stage).first_prompt for stage in own)

    @property
    def longest(self) -> int:
        """Tokens that evaluations on the way need of an engine; 0 without evaluations."""
        recipe = self.recipe
        return recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens if recipe.evaluate.every else 0

    def after(self, step: int) -> Iterator[tuple[Stage, TaskSet]]:
        """Yield the stages left after so many steps, the current one first."""
        return ((stage, tasks) for stage, tasks in self._each if stage.last > step)

    def data_since(self, stage: Stage) -> int:
        """Return the step after which this stage's tasks begin."""
        before = stage.before
        for earlier, _ in reversed(self._each[: stage.number - 1]):
            if earlier.recipe.task != stage.recipe.task:
                break
            before = earlier.before
        return before

    def waits(self, stage: Stage) -> bool:
        """Return whether the stage's pass rates are still to be measured."""
        return self._streams[stage.number - 1] is None

    def stream(self, stage: Stage) -> PromptStream:
        """Return the stage's prompts, from the beginning of its data; of all tasks without its pass rates."""
        return self._streams[stage.number - 1] or self._stream(stage.number - 1, rates=False)

    def prompts(self, stage: Stage, drawn: Sequence[int], checkpoint: Path) -> Iterator[Task]:
        """Yield the stage's prompts that are still to be drawn. drawn: prompts that each stage has drawn so far.
        checkpoint: of the model that it starts from. Raises RecipeError if its pass rates are still missing."""
        number = stage.number - 1
        stream = self._streams[number]
        if stream is None:
            if not self._rates_there(stage):
                raise RecipeError(
                    f"{stage}: select.pass_rates = {stage.recipe.select.pass_rates} is not there yet: `retcon "
                    f"difficulty {checkpoint} RECIPE --stage {stage.name} --tasks N --out "
                    f"{stage.recipe.select.pass_rates}` measures them with the model of the stage before; the same "
                    "command again then goes on here"
                )
            stream = self._streams[number] = self._stream(number)
        begin = Position()
        for before in self._earlier(number):
            one = self._streams[before]
            if one is not None:
                begin = one.position(drawn[before], begin)
        return stream.after(drawn[number] if number < len(drawn) else 0, begin)

    def _stream(self, number: int, *, rates: bool = True) -> PromptStream:
        stage, tasks = self._each[number]
        recipe = stage.recipe
        steps = sum(self._steps(self._each[one][0]) for one in (*self._earlier(number), number))
        if not rates:
            recipe = recipe.model_copy(update={"select": recipe.select.model_copy(update={"pass_rates": ""})})
        chat = build_chat(recipe, self._folder, tasks)
        try:
            return PromptStream(recipe, tasks, chat=chat, model=self._model, steps=steps)
        except RecipeError as error:
            raise RecipeError(f"{stage}: {error}" if stage.name else str(error)) from error

    def _steps(self, stage: Stage) -> int:
        return stage.steps if self._look is None else min(stage.steps, self._look)

    def _earlier(self, number: int) -> list[int]:
        """Return the earlier stages that draw from the same data."""
        own = self._each[number][0].recipe.task
        return [before for before in range(number) if self._each[before][0].recipe.task == own]

    def _rates_there(self, stage: Stage) -> bool:
        rates = stage.recipe.select.pass_rates
        return not rates or Path(rates).is_file()


def _check_own(stage: Stage, tasks: TaskSet, problems: Sequence[Task], steps: int) -> None:
    """Check that a user's task set keeps evaluation apart, by id and by content, in up to LOOK tasks of these steps.
    The built-in families do."""
    ids, contents = {p.id for p in problems}, {replace(p, id="").content for p in problems}
    recipe = stage.recipe
    some = islice(training_prompts(tasks, recipe.run.seed), min(steps * recipe.rl.prompts, LOOK))
    shared = [task.id for task in some if task.id in ids or replace(task, id="").content in contents]
    if shared:
        raise RecipeError(
            f"{class_path(tasks)}: {counted(len(shared), 'training task')} of train(seed) come from "
            f"evaluation(count, seed) as well, by id or by content ({shared[0]} is the first): the two must not overlap"
        )


def _check_shared(stage: Stage, tasks: TaskSet, problems: Sequence[Task], most: int) -> None:
    """Check that the stage does not train on the recipe's evaluation problems: each task set keeps only its own
    apart. most: tasks to examine."""
    measured = {problem.question for problem in problems}
    some = islice(training_prompts(tasks, stage.recipe.run.seed), most)
    if shared := sum(task.question in measured for task in some):
        raise RecipeError(
            f"{stage} would train on {shared} of the evaluation problems, which are those of the recipe's own [task]: "
            "leave them out (task.against, task.overlap), or evaluate on others"
        )


# Checks of a training before it begins, without the weights that it starts from.
#
#     python -m retcon.train.stages
#
# reads JSON: a list of [name, recipe, overrides, model, whether that is what it starts from, run folder], and by name
# the inputs of earlier runs. It prints a line [name, obstacle, whether that refuses it] for each run that could not
# begin, in less than a second each after torch's import, as it examines only the tasks of a first step.

RunRequest = tuple[str, str, Sequence[str], str, bool, str]
"""Name, recipe, overrides, folder of the model or of one like it, whether it is the model itself, run folder."""
EarlierInput = tuple[str, str, str]
"""An input of a run to compare with: WEIGHTS or PROBLEMS (`retcon.runs.folder`), their fingerprint, that run."""


@dataclass(frozen=True, slots=True)
class ReadyRun:
    """A checked run, except for memory and disk. each: its stages, with their tasks and needs."""

    settled: ResolvedRun
    place: Placement
    stages: RunStages
    each: tuple[tuple[Stage, TaskSet, Needs], ...]


def prepare_run(
    recipe: Recipe, folder: Path, out: Path, *, look: int | None = None, settled: ResolvedRun | None = None
) -> ReadyRun:
    """Check a training of the model in `folder`, without output. It may be one like the run's. look: as in `RunStages`.
    Raises the run's errors before its start, except for memory and disk (`planning.needs.check_fits`)."""
    recipe.engine.check_training(recipe)
    settled = settled or resolve_stages(recipe, folder)
    recipe = settled.recipe
    place = place_training(recipe, folder, reference=settled.needs_reference)
    check_free(out, "rl", recipe)
    model = fingerprint(folder) if uses_pass_rates(recipe) else ""  # whose rates count
    stages = RunStages(settled, folder, model=model, look=look)
    reference, least = settled.needs_reference, stages.longest
    each = [
        (stage, tasks, needs_of("rl", stage.recipe, folder, place, reference=reference, least=least))
        for stage, tasks in settled.each
    ]
    return ReadyRun(settled, place, stages, tuple(each))


def uses_pass_rates(recipe: Recipe) -> bool:
    """Return whether a stage selects its tasks by pass rates."""
    return any(stage.recipe.select.pass_rates for stage in stages_of(recipe))


def find_obstacles(
    asked: Sequence[RunRequest], made: Mapping[str, Sequence[EarlierInput]] = MappingProxyType({})
) -> Iterator[tuple[str, str, bool]]:
    """Yield name, obstacle and whether it refuses the run, per run: other errors of a user's class may have passed
    by then. Pass rates of a model that does not exist yet are unknown: runs by such are skipped.
    made: by name, inputs that must not have changed."""
    for name, given, overrides, folder, itself, out in asked:
        recipe = load_recipe(given, overrides)
        if not itself and uses_pass_rates(recipe):
            continue
        try:
            ready = prepare_run(recipe, Path(folder), Path(out), look=1)
            for stage, _, needs in ready.each:
                check_fits_later(needs, Path(out), stage)
            _check_unchanged(ready, Path(folder), made.get(name, ()))
        except RetconError as error:
            yield name, str(error), True
        except Exception as error:  # noqa: BLE001 - whatever a user's class raises: the others are checked still
            yield name, f"{type(error).__name__}: {error}", False


def _check_unchanged(ready: ReadyRun, folder: Path, made: Iterable[EarlierInput]) -> None:
    """Check that weights and evaluation problems are those of earlier runs. Raises RecipeError."""
    for what, value, by in made:
        if what == WEIGHTS:
            now = fingerprint(folder)
        else:
            about = ready.settled.recipe.evaluate
            now = fingerprint_of(evaluation_tasks(ready.settled.tasks, about.problems, about.seed))
        if now != value:
            raise RecipeError(
                f"{by} has other {what}: the recipe's inputs have changed since, and the two could not be compared; "
                "put them back, or choose another --out"
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the runs say so themselves
    # Prints of tasks must not mix with the answers, and processes that they leave running would keep the pipe open.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for obstacle in find_obstacles(*json.load(sys.stdin)):
            print(json.dumps(obstacle), file=answers, flush=True)


HARNESS = "harness"


def without_harnesses(recipe: Recipe) -> Recipe:
    """Return the recipe and its stages without harnesses."""
    stages = tuple(
        stage.model_copy(update={"rollout": {key: value for key, value in stage.rollout.items() if key != HARNESS}})
        for stage in recipe.stages
    )
    return without_harness(recipe).model_copy(update={"stages": stages})


def harness_of(changes: Changes) -> Changes:
    """Return the harness among a stage's changes."""
    return {HARNESS: changes[HARNESS]} if HARNESS in changes else {}
