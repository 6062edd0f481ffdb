"""Which keys of a recipe a piece of work depends on, and how two recipes differ in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from retcon.config.schema import Recipe
from retcon.config.section import Section, Work

Values = Mapping[str, Mapping[str, object]]
"""A recipe, or a part of it, as JSON: section to key to value."""
WEIGHTS, PROBLEMS = "weights", "problems"
"""What runs that are compared start from, and are measured on: what a recipe names may change, and the recipe not."""


def relevant(recipe: Recipe, work: Work) -> dict[str, dict[str, object]]:
    """What of the recipe `work` depends on, as its sections declare (`Section.matters_to`), as JSON, `flat`."""
    found: dict[str, dict[str, object]] = {}
    for name in type(recipe).model_fields:
        section = getattr(recipe, name)
        keys = section.keys_for(work) if isinstance(section, Section) else ()
        if keys:
            found[name] = section.model_dump(mode="json", include=set(keys))
    if work == "rl":
        whole = flat(recipe.model_dump(mode="json"))
        found |= {name: keys for name, keys in whole.items() if name.partition(".")[0] == "stages"}
    return found


def flat(recipe: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """A whole recipe as `Values`, its stages among the sections: `stages.2` with keys such as `rollout.max_tokens`, and
    `stages` with their names, which is empty where there are none."""
    stages = recipe.get("stages", ())
    found = {name: dict(keys) for name, keys in recipe.items() if name != "stages"}
    found["stages"] = {"names": [stage["name"] for stage in stages]} if stages else {}
    for number, stage in enumerate(stages, start=1):
        keys: dict[str, object] = {}
        for name, value in stage.items():
            keys |= {f"{name}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {name: value}
        found[f"stages.{number}"] = keys
    return found


def as_now(old: Values, recipe: Recipe, part: Values | None = None) -> dict[str, dict[str, object]]:
    """`old`, which an earlier Retcon may have written, as this one would have: keys that it lacks, and that have their
    default in the recipe, are added. For a new key's default does what was done before there was the key; the one
    that does not is written out below. part: what `old` is to have of the recipe, None where that is all."""
    found = {name: dict(keys) for name, keys in old.items()}
    masks = [v for keys in old.values() for k, v in keys.items() if k.endswith(("truncated", "void_turns"))]
    if "mask" in masks:  # rollouts that were masked stayed in the baseline until a key said so
        found["rl"] = {"masked_in_baseline": True, **found.get("rl", {})}
    for name in type(recipe).model_fields:
        section = getattr(recipe, name)
        if not isinstance(section, Section):
            continue
        keys = found.setdefault(name, {})
        for key, value in section.model_dump(mode="json").items():
            usual = type(section).model_fields[key].get_default(call_default_factory=True)
            wanted = part is None or key in part.get(name, {})
            if wanted and key not in keys and getattr(section, key) == usual:
                keys[key] = value
    return found


def is_immaterial(section: str, before: Mapping[str, object], key: str, value: object) -> bool:
    """Whether work goes on with another value of a key of the section, or of one of `stages`: it is one of
    `Section.immaterial`, or a table without an entry, of which an earlier Retcon knew nothing."""
    new_and_empty = key not in before and value == {}
    if section.startswith("stages."):
        section, _, key = key.partition(".")
    field = Recipe.model_fields.get(section)
    return new_and_empty or (field is not None and key in getattr(field.annotation, "immaterial", ()))


def differing(old: Values, new: Values) -> Iterator[str]:
    """`section.key was X, is Y` for every key of either that differs; what one of them lacks is None there.

    Sections that `new` does not have are not compared, nor keys that are immaterial (`is_immaterial`).
    """
    for section, now in new.items():
        before = old.get(section, {})
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key) and not is_immaterial(section, before, key, now.get(key)):
                yield f"{section}.{key} was {before.get(key)!r}, is {now.get(key)!r}"
