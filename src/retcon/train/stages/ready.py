"""What a training looks at before it begins: whether it can be done here, without the weights that it starts from.

    python -m retcon.train.stages.ready

reads JSON: a list of [name, recipe, overrides, model, whether that is what it starts from, run folder], and by name
what earlier runs were made of; and says which of them could not begin, a line [name, what is in the way, whether that
refuses it] each; less than a second each, after torch's import, as of their tasks it looks at those of a first step.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from retcon.config.load import load_recipe
from retcon.config.schema import Recipe
from retcon.config.stages import Stage, stages_of
from retcon.core.errors import RecipeError, RetconError
from retcon.models.devices import Placement
from retcon.models.placing import place_training
from retcon.planning.needs import Needs, needs_of, refuse_hopeless
from retcon.runs.comparing import WEIGHTS
from retcon.runs.manifest import check_free
from retcon.store.fingerprint import fingerprint
from retcon.tasks.checked import evaluation_tasks
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import fingerprint_of
from retcon.train.stages.running import RunStages
from retcon.train.stages.settling import Settled, settle_stages

Asked = tuple[str, str, Sequence[str], str, bool, str]
"""Name, recipe, overrides, folder of the model or of one like it, whether it is the model itself, run folder."""
Made = tuple[str, str, str]
"""Of runs that it is to be compared with: WEIGHTS or PROBLEMS (`retcon.runs.comparing`), their fingerprint, whose."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A run that nothing but memory and disk may be in the way of. each: its stages, with their tasks and needs."""

    settled: Settled
    place: Placement
    stages: RunStages
    each: tuple[tuple[Stage, TaskSet, Needs], ...]


def get_ready(recipe: Recipe, folder: Path, out: Path, *, look: int | None = None) -> Ready:
    """A training of the model in `folder`, or of one like it. look: as of `RunStages`. Makes nothing. Raises what the
    run itself would before it starts, but for memory and disk (`planning.needs.refuse_unfit`)."""
    recipe.engine.refuse_training(recipe)
    settled = settle_stages(recipe, folder)
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
                refuse_hopeless(needs, Path(out), stage)
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
