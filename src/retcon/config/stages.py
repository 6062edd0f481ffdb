"""The stages of a run: the recipe again and again, each time with some keys changed.

    [[stages]]
    name = "short"
    steps = 30
    rollout.max_tokens = 160

A stage is the whole recipe with its own keys on top, as overrides are; the recipe without them is what evaluations
measure, in between and afterwards. Steps are counted over the whole run, whose number is rl.steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SerializationInfo, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from retcon.config.section import NonNegative, Section
from retcon.core.errors import RecipeError, nearest

if TYPE_CHECKING:
    from retcon.config.schema import Recipe

CHANGED = ("task", "rollout", "repair", "select", "sandbox", "rl")
"""Sections that a stage can have keys of; the others are of the whole run."""
WHOLE_RUN = ("steps", "max_sampled_tokens", "max_cpu_seconds", "drift_alarm", "checkpoint_every")
"""Keys of [rl] that are so too."""

Changes = dict[str, Any]
"""Key to value, as written."""


class StageSection(Section):
    """One of [[stages]]. Beside these keys it has tables of the sections in CHANGED, with the keys that it changes."""

    name: str = Field(pattern=r"^[\w-]*[\p{L}_-][\w-]*$", description="in progress, reports and overrides "
                      "(stages.short.rollout.max_tokens=200), which also take its number")  # fmt: skip
    steps: NonNegative = Field(0, description="steps of the stage; the last one can leave them out, and has what is "
                               "left of rl.steps")  # fmt: skip
    optimizer: Literal["keep", "new"] = Field("keep", description="new: the stage begins with no moments of AdamW, and "
        "the learning rate with its warm-up and schedule anew")  # fmt: skip
    task: Changes = Field({})
    rollout: Changes = Field({})
    repair: Changes = Field({})
    select: Changes = Field({})
    sandbox: Changes = Field({})
    rl: Changes = Field({})

    @property
    def changes(self) -> dict[str, Changes]:
        """Section to key to value."""
        return {section: keys for section in CHANGED if (keys := getattr(self, section))}

    @model_serializer(mode="wrap")
    def _written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if key not in CHANGED or value}


OWN = tuple(key for key in StageSection.model_fields if key not in CHANGED)
"""A stage's keys that are no section's."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of a run. number: from 1. before: steps of the run before its first. last: the step it ends with.
    anew: whether it begins with a new optimiser. falling: (before, last) of the stretch, of stages that share an
    optimiser, over which the learning rate runs its course. recipe: with its changes, and no stages; rl.steps is still
    that of the whole run."""

    number: int
    name: str
    before: int
    last: int
    anew: bool
    falling: tuple[int, int]
    recipe: Recipe

    @property
    def steps(self) -> int:
        return self.last - self.before

    def __str__(self) -> str:
        return f"stage {self.number}, {self.name}" if self.name else "the run"


def stages_of(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of a run in their order; one without a name, the whole run, where the recipe has none."""
    total = recipe.rl.steps
    if not recipe.stages:
        return (Stage(1, "", 0, total, False, (0, total), recipe),)
    ends = list(_ends(recipe))
    begins = [0, *ends[:-1]]
    renewed = [before for stage, before in zip(recipe.stages, begins, strict=True) if stage.optimizer == "new"]
    found = []
    for number, (stage, before, last) in enumerate(zip(recipe.stages, begins, ends, strict=True), start=1):
        since = max((step for step in renewed if step <= before), default=0)
        until = min((step for step in renewed if step > before), default=total)
        anew = stage.optimizer == "new"
        found.append(Stage(number, stage.name, before, last, anew, (since, until), changed(recipe, stage)))
    return tuple(found)


def stage_named(recipe: Recipe, named: str, where: str) -> Stage:
    """The stage of that name, or number from 1. Raises RecipeError, which begins with `where`."""
    return stages_of(recipe)[place_of_stage([stage.name for stage in recipe.stages], named, where)]


def place_of_stage(names: Sequence[str], named: str, where: str) -> int:
    """From 0, of the stage of that name, or number from 1. Raises RecipeError, which begins with `where`."""
    if named in names:
        return names.index(named)
    if named.isdecimal() and 1 <= int(named) <= len(names):
        return int(named) - 1
    there = ", ".join(f"{number} {name}" for number, name in enumerate(names, start=1))
    said = f"no stage '{named}'{nearest(named, names)}; there are: {there}" if names else "the recipe has no stages"
    raise RecipeError(f"{where}: {said}")


def changed(recipe: Recipe, stage: StageSection) -> Recipe:
    """The recipe of a stage alone. Raises ValidationError for changes that it does not take."""
    data = recipe.model_dump(mode="json", exclude_unset=True, exclude={"stages"})
    for section, changes in stage.changes.items():
        about: Any = type(recipe).model_fields[section].annotation
        data[section] = about.with_changes(data.get(section, {}), changes)
    return type(recipe).model_validate_json(json.dumps(data), strict=True)


def check_stages(recipe: Recipe) -> None:
    """Raises ValidationError, at ("stages", number from 0, …), where stages cannot follow each other so, or one of them
    is no recipe."""
    names = [stage.name for stage in recipe.stages]
    for at, stage in enumerate(recipe.stages):
        if stage.name in names[:at]:
            raise _error((at, "name"), "stage", f"there is another stage of that name: {', '.join(names)}", stage.name)
        for key in WHOLE_RUN:
            if key in stage.rl:
                own = "; the stage's own are its key `steps`" if key == "steps" else ""
                raise _error((at, "rl", key), "stage", f"it is of the whole run: set it in [rl]{own}", stage.rl[key])
    total, last = recipe.rl.steps, len(names) - 1
    for at, (stage, end) in enumerate(zip(recipe.stages, _ends(recipe), strict=True)):
        if at < last and not stage.steps:
            said = "every stage but the last says how many steps it has"
        elif at < last and end >= total:
            said = f"no step of rl.steps = {total} is left for stage {names[at + 1]}: raise that, or lower this"
        elif at == last and end != total:
            said = f"the stages have {end} steps in all, and rl.steps = {total}: make them equal, or leave this out"
        else:
            continue
        raise _error((at, "steps"), "stage", said, stage.steps)
    for at, stage in enumerate(recipe.stages):
        try:
            changed(recipe, stage)
        except ValidationError as error:
            first = error.errors()[0]
            raise _error((at, *first["loc"]), first["type"], first["msg"], first["input"]) from error


def differences(recipe: Recipe, stage: StageSection, whole: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The stage as a table of all keys that it has otherwise than the recipe, which is written in full as `whole`: what
    a kind brings along is then no longer left to its defaults."""
    own = changed(recipe, stage).model_dump(mode=mode)
    told: dict[str, Any] = {key: getattr(stage, key) for key in OWN}
    for section in CHANGED:
        there = whole.get(section)
        if there is not None and own[section] != there:
            told[section] = {k: v for k, v in own[section].items() if k not in there or there[k] != v}
    return told


def written(recipe: Recipe, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
    """A recipe as a table: without stages where it has none, and in full with their `differences`."""
    data: dict[str, Any] = handler(recipe)
    if not recipe.stages:
        data.pop("stages", None)
    elif "stages" in data and not info.exclude_unset:
        data["stages"] = [differences(recipe, stage, data, info.mode) for stage in recipe.stages]
    return data


def _ends(recipe: Recipe) -> Iterator[int]:
    """The step that each stage ends with."""
    end, last = 0, len(recipe.stages) - 1
    for at, stage in enumerate(recipe.stages):
        end = end + stage.steps if stage.steps or at < last else recipe.rl.steps
        yield end


def _error(place: tuple[str | int, ...], kind: str, said: str, value: object) -> ValidationError:
    about = PydanticCustomError(kind, "{said}", {"said": said})
    return ValidationError.from_exception_data(
        "Recipe", [InitErrorDetails(type=about, loc=("stages", *place), input=value)]
    )
