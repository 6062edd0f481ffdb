"""A run's stages, ready to be trained: each with its tasks, and the prompts that it draws."""

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
from retcon.train.settling import Settled, settle_stages

# A run's stages, ready to be trained: each with its tasks, and the prompts that it draws.
#
# Evaluations are of the recipe without its stages' changes: the same problems, limits and tools in all of them.


class RunStages:
    """The stages of one run. model: fingerprint of the one that it starts from. inputs: what they learn from besides
    the recipe, name to fingerprint; NOT_THERE for pass rates that a later stage will need and that nobody has measured.
    look: steps of each stage whose tasks are looked at, None for all that a run looks at, which `inputs` are of.

    Raises RecipeError, RecordError as `PromptStream`; RecipeError where a stage's data hold problems of the evaluation,
    where there is none to evaluate on, or where one leaves no room to answer.
    """

    def __init__(self, settled: Settled, folder: Path, *, model: str, look: int | None = None) -> None:
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
                _refuse_shared(stage, tasks, problems, most)
            elif is_user_class(tasks):
                _refuse_own(stage, tasks, problems, self._steps(stage))
            missing = number > 0 and not self._rates_there(stage)
            stream = None if missing else self._stream(number)
            self._streams.append(stream)
            suffix = f" of {stage}" if number else ""
            found = stream.inputs if stream else {**self._stream(number, rates=False).inputs, "pass rates": NOT_THERE}
            if self._earlier(number):
                found = {name: value for name, value in found.items() if name != "tasks"}  # those of the one before
            self.inputs |= {f"{name}{suffix}": value for name, value in found.items()}

    @property
    def rendered(self) -> str:
        """A hash of the ids of each stage's first prompt: of the tools and the template that prompts show. Without
        stages of harnesses, which show what they like."""
        own = (stage for stage, _ in self._each if not stage.recipe.rollout.harness)
        return ids_fingerprint(self.stream(stage).first_prompt for stage in own)

    @property
    def longest(self) -> int:
        """Tokens that evaluations on the way ask of an engine, whatever the stage; 0 where there are none."""
        recipe = self.recipe
        return recipe.rollout.max_tokens + recipe.rollout.lookahead_tokens if recipe.evaluate.every else 0

    def after(self, step: int) -> Iterator[tuple[Stage, TaskSet]]:
        """The stages that a run of so many steps has before it, the one that it is in first."""
        return ((stage, tasks) for stage, tasks in self._each if stage.last > step)

    def data_since(self, stage: Stage) -> int:
        """The step after which the tasks are those of this stage."""
        before = stage.before
        for earlier, _ in reversed(self._each[: stage.number - 1]):
            if earlier.recipe.task != stage.recipe.task:
                break
            before = earlier.before
        return before

    def waits(self, stage: Stage) -> bool:
        """Whether it cannot begin before somebody has measured its pass rates."""
        return self._streams[stage.number - 1] is None

    def stream(self, stage: Stage) -> PromptStream:
        """What the stage draws, from the beginning of its data; of all tasks, where its pass rates are not there."""
        return self._streams[stage.number - 1] or self._stream(stage.number - 1, rates=False)

    def prompts(self, stage: Stage, drawn: Sequence[int], checkpoint: Path) -> Iterator[Task]:
        """What the stage has still to draw. drawn: prompts that each stage has drawn so far. checkpoint: of the model
        that it starts from. Raises RecipeError where its pass rates are still not there."""
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
        """Of the stages before, those that draw from the same data."""
        own = self._each[number][0].recipe.task
        return [before for before in range(number) if self._each[before][0].recipe.task == own]

    def _rates_there(self, stage: Stage) -> bool:
        rates = stage.recipe.select.pass_rates
        return not rates or Path(rates).is_file()


def _refuse_own(stage: Stage, tasks: TaskSet, problems: Sequence[Task], steps: int) -> None:
    """The families here keep evaluation apart; whether a class of one's own does is seen by what the stage draws, at
    most LOOK tasks of these steps: by id, which is a problem's for good, and by all else that a task holds."""
    ids, contents = {p.id for p in problems}, {replace(p, id="").content for p in problems}
    recipe = stage.recipe
    some = islice(training_prompts(tasks, recipe.run.seed), min(steps * recipe.rl.prompts, LOOK))
    shared = [task.id for task in some if task.id in ids or replace(task, id="").content in contents]
    if shared:
        raise RecipeError(
            f"{class_path(tasks)}: {counted(len(shared), 'training task')} of train(seed) come from "
            f"evaluation(count, seed) as well, by id or by content ({shared[0]} is the first): the two must not overlap"
        )


def _refuse_shared(stage: Stage, tasks: TaskSet, problems: Sequence[Task], most: int) -> None:
    """Each task set keeps its own evaluation apart; what evaluations measure here is of the recipe's. most: tasks that
    are looked at."""
    measured = {problem.question for problem in problems}
    some = islice(training_prompts(tasks, stage.recipe.run.seed), most)
    if shared := sum(task.question in measured for task in some):
        raise RecipeError(
            f"{stage} would train on {shared} of the problems that evaluations measure, which are those of the "
            "recipe's own [task]: leave them out (task.against, task.overlap), or evaluate on others"
        )


# What a training looks at before it begins: whether it can be done here, without the weights that it starts from.
#
#     python -m retcon.train.stages
#
# reads JSON: a list of [name, recipe, overrides, model, whether that is what it starts from, run folder], and by name
# what earlier runs were made of; and says which of them could not begin, a line [name, what is in the way, whether that
# refuses it] each; less than a second each, after torch's import, as of their tasks it looks at those of a first step.

Asked = tuple[str, str, Sequence[str], str, bool, str]
"""Name, recipe, overrides, folder of the model or of one like it, whether it is the model itself, run folder."""
Made = tuple[str, str, str]
"""Of runs that it is to be compared with: WEIGHTS or PROBLEMS (`retcon.runs.folder`), their fingerprint, whose."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A run that nothing but memory and disk may be in the way of. each: its stages, with their tasks and needs."""

    settled: Settled
    place: Placement
    stages: RunStages
    each: tuple[tuple[Stage, TaskSet, Needs], ...]


def get_ready(
    recipe: Recipe, folder: Path, out: Path, *, look: int | None = None, settled: Settled | None = None
) -> Ready:
    """A training of the model in `folder`, or of one like it. look: as of `RunStages`. Makes nothing. Raises what the
    run itself would before it starts, but for memory and disk (`planning.needs.check_fits`)."""
    recipe.engine.check_training(recipe)
    settled = settled or settle_stages(recipe, folder)
    recipe = settled.recipe
    place = place_training(recipe, folder, reference=settled.needs_reference)
    check_free(out, "rl", recipe)
    model = fingerprint(folder) if rated(recipe) else ""  # whose rates count
    stages = RunStages(settled, folder, model=model, look=look)
    reference, least = settled.needs_reference, stages.longest
    each = [
        (stage, tasks, needs_of("rl", stage.recipe, folder, place, reference=reference, least=least))
        for stage, tasks in settled.each
    ]
    return Ready(settled, place, stages, tuple(each))


def rated(recipe: Recipe) -> bool:
    """Whether pass rates say what a stage trains on."""
    return any(stage.recipe.select.pass_rates for stage in stages_of(recipe))


def unready(
    asked: Sequence[Asked], made: Mapping[str, Sequence[Made]] = MappingProxyType({})
) -> Iterator[tuple[str, str, bool]]:
    """Name, what is in the way, and whether its run would be refused for it, of those that could not begin: what else a
    class of one's own raises may have passed by then. Of a model that is not there yet nobody knows which pass rates
    are its own: a training by such is left to its own run. made: by name, what must not have changed."""
    for name, given, overrides, folder, itself, out in asked:
        recipe = load_recipe(given, overrides)
        if not itself and rated(recipe):
            continue
        try:
            ready = get_ready(recipe, Path(folder), Path(out), look=1)
            for stage, _, needs in ready.each:
                check_fits_later(needs, Path(out), stage)
            _refuse_changed(ready, Path(folder), made.get(name, ()))
        except RetconError as error:
            yield name, str(error), True
        except Exception as error:  # noqa: BLE001 - whatever a class of one's own raises: others are looked at still
            yield name, f"{type(error).__name__}: {error}", False


def _refuse_changed(ready: Ready, folder: Path, made: Iterable[Made]) -> None:
    """Raises RecipeError for other weights, or other problems to measure on, than those of earlier runs."""
    for what, value, by in made:
        if what == WEIGHTS:
            now = fingerprint(folder)
        else:
            about = ready.settled.recipe.evaluate
            now = fingerprint_of(evaluation_tasks(ready.settled.tasks, about.problems, about.seed))
        if now != value:
            raise RecipeError(
                f"{by} is of other {what}: what the recipe names has changed since, and the two could not be compared; "
                "put it back, or choose another --out"
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the runs say so themselves
    # What tasks print is no answer; and what they start, and leave running, would keep the pipe open.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for told in unready(*json.load(sys.stdin)):
            print(json.dumps(told), file=answers, flush=True)


HARNESS = "harness"


def without_harnesses(recipe: Recipe) -> Recipe:
    """The recipe, and its stages, of a run that makes no rollouts any more."""
    stages = tuple(
        stage.model_copy(update={"rollout": {key: value for key, value in stage.rollout.items() if key != HARNESS}})
        for stage in recipe.stages
    )
    return without_harness(recipe).model_copy(update={"stages": stages})


def harness_of(changes: Changes) -> Changes:
    """The harness among a stage's changes."""
    return {HARNESS: changes[HARNESS]} if HARNESS in changes else {}
