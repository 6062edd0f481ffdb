"""What to say of a recipe that is not one: pydantic's error in the words of who wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from pydantic_core import ErrorDetails

from retcon.config.keys import all_keys, homes, keys_in
from retcon.config.lines import Place
from retcon.config.schema import SECTIONS
from retcon.config.section import Chosen, Section
from retcon.config.stages import CHANGED, OWN
from retcon.core.errors import nearest

LEFT_OUT = "Value error, "


def complaint(error: ErrorDetails, data: Mapping[str, Any]) -> tuple[Place, str]:
    """Where to look, and what to say of it. data: what was read."""
    at = error["loc"]
    if at[:1] != ("stages",):
        place = _place(error, at)
        return (*place, *at[2:]), _said(error, place, at[2:], data.get(str(place[0])) if place else None)
    if len(at) < 2:
        return at, "stages: write each as [[stages]], a table with a name, steps, and what it changes"
    number, stage = int(at[1]), data["stages"][int(at[1])]
    title = f"stage {number + 1}"
    if isinstance(stage, Mapping) and isinstance(name := stage.get("name"), str):
        title = f"{title}, {name}"
    inner = at[2:]
    if len(inner) < 2 and inner[:1] and inner[0] not in CHANGED:
        return at, f"{title}: {_of_a_stage(error, str(inner[0]))}"
    place = _place(error, inner)
    # Keys of the stage, on those of the recipe: the two together have the kind.
    section = str(place[0]) if place else ""
    changes = stage.get(section) if isinstance(stage, Mapping) else None
    given = changes
    if isinstance(changes, Mapping) and isinstance(whole := data.get(section, {}), Mapping) and section in SECTIONS:
        given = SECTIONS[section].with_changes(whole, changes)
    # What the stage does not set itself goes wrong with what it sets.
    unset = not isinstance(changes, Mapping) or (place[1:] and place[1] not in changes)
    shown = at[:2] if unset else (*at[:2], *place, *inner[2:])
    return shown, f"{title}: {_said(error, place, inner[2:], given)}"


def _place(error: ErrorDetails, at: Place) -> tuple[str, ...]:
    """(section, key), or the section alone."""
    if at:
        return tuple(str(part) for part in at[:2])
    # A rule over several sections has no place of its own: its message begins with the one to look at.
    return (error["msg"].removeprefix(LEFT_OUT).partition(":")[0],)


def _of_a_stage(error: ErrorDetails, key: str) -> str:
    if error["type"] == "extra_forbidden" and key in SECTIONS:
        return f"[{key}] is of the whole run: a stage can change {', '.join(CHANGED)}"
    if error["type"] == "extra_forbidden":
        known = (*OWN, *CHANGED)
        return f"unknown key '{key}'{nearest(key, known)}; a stage has {', '.join(OWN)}, and of {', '.join(CHANGED)}"
    if error["type"] == "missing":
        return f"it has no {key}"
    if error["type"] == "string_pattern_mismatch":
        return f"name = {json.dumps(error['input'])} is not allowed: letters, digits, - and _, and not digits alone"
    return _not_allowed(error, key)


def _said(error: ErrorDetails, place: tuple[str, ...], within: Place, given: object) -> str:
    """within: where in the key's value. given: what was written in the section."""
    section, key = ([*place, "", ""])[:2]
    if section not in SECTIONS:
        return f"unknown section '{section}'{nearest(section, SECTIONS)}; sections: {', '.join(SECTIONS)}"
    if not key:
        # The section as a whole: a rule over its keys, or a plain value where a table belongs.
        return f"{section}: {error['msg'].removeprefix(LEFT_OUT).removeprefix(f'{section}: ')}"
    if len(within) > 1 and isinstance(within[-1], str):  # a key of a table in a list
        table, inner = within[:-1], within[-1]
        where = f"{section}.{key}" + "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in table)
        if error["type"] != "extra_forbidden":
            return _not_allowed(error, f"{where}.{inner}")
        (about, *_) = get_args(_kind(section, given if isinstance(given, Mapping) else {}).model_fields[key].annotation)
        known = about.model_fields
        return f"unknown key '{inner}' in {where}{nearest(inner, known)}; keys: {', '.join(known)}"
    if error["type"] == "extra_forbidden" and isinstance(given, Mapping) and key in given:
        known = keys_in(section, given)
        about = SECTIONS[section]
        if owners := homes(section, key):
            chosen_by = about.chosen_by if issubclass(about, Chosen) else ""
            return f"{section}.{key} belongs to {chosen_by} = {' or '.join(map(json.dumps, owners))}"
        hint = nearest(key, known) or nearest(key, all_keys(section))
        return f"unknown key '{key}' in [{section}]{hint}; keys: {', '.join(known)}"
    return _not_allowed(error, f"{section}.{key}")


def _not_allowed(error: ErrorDetails, key: str) -> str:
    value = json.dumps(error["input"], default=str)
    message = error["msg"].removeprefix(LEFT_OUT)
    return f"{key} = {value} is not allowed: {message[:1].lower()}{message[1:]}"


def _kind(section: str, keys: Mapping[str, object]) -> type[Section]:
    """The class of a section with these keys. Raises RecipeError where its kind is unknown."""
    about = SECTIONS[section]
    return about.kind_in(keys) if issubclass(about, Chosen) else about
