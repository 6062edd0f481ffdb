"""Writing a recipe as TOML, each key with its description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from retcon.config.keys import own_keys, variants
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import Chosen, Section
from retcon.config.stages import CHANGED, OWN, StageSection


def recipe_to_toml(recipe: Recipe) -> str:
    """The whole recipe as TOML that `load_recipe` reads back to an equal one, annotated by the keys' descriptions."""
    lines: list[str] = []
    for name in SECTIONS:
        lines += ["", *_section(name, getattr(recipe, name))]
    if recipe.stages:
        for table in recipe.model_dump(mode="json")["stages"]:
            lines += ["", *_stage(table)]
    return "\n".join(lines[1:]) + "\n"


def reference() -> str:
    """Every key that there is, with its default, as TOML: as `recipe_to_toml` of an empty recipe, and as comments the
    keys of the kinds that are not the default."""
    recipe = Recipe()
    lines: list[str] = []
    for name in SECTIONS:
        section: Section = getattr(recipe, name)
        lines += ["", *_section(name, section)]
        for kind, about in variants(name).items():
            keys = own_keys(name, kind) if isinstance(section, Chosen) and not isinstance(section, about) else ()
            if isinstance(section, Chosen) and keys:
                lines.append(f"# {section.chosen_by} = {json.dumps(kind)} also has:")
                lines += [f"# {_line(about(), key)}" for key in keys]
    lines += ["", *_stages_explained()]
    return "\n".join(lines[1:]) + "\n"


def _stage(table: Mapping[str, Any]) -> list[str]:
    lines = ["[[stages]]", *(f"{key} = {toml_of(table[key])}" for key in OWN)]
    for section, keys in table.items():
        if section not in OWN:
            lines += [f"[stages.{section}]", *(f"{key} = {toml_of(value)}" for key, value in keys.items())]
    return lines


def _stages_explained() -> list[str]:
    """Without a default, as there is none: an empty recipe has no stages."""
    notes = {key: _note(StageSection.model_fields[key]) for key in OWN}
    shown = {"name": "short", "steps": 30, "optimizer": "keep"}
    return [
        "# [[stages]]",
        *(f"# {key} = {toml_of(shown[key])}  # {notes[key]}" for key in OWN),
        f"# rollout.max_tokens = 160  # and any key of {', '.join(CHANGED)} whose value differs from the above",
    ]


def _section(name: str, section: Section) -> list[str]:
    return [f"[{name}]", *(_line(section, key) for key in type(section).model_fields)]


def _line(section: Section, key: str) -> str:
    note = _note(type(section).model_fields[key])
    if isinstance(section, Chosen) and key == section.chosen_by:
        note = f"{note}: {' | '.join(section.kinds.names)}, or an import path"
    value = section.model_dump(mode="json", include={key})[key]
    return f"{key} = {toml_of(value)}" + (f"  # {note}" if note else "")


def _note(field: FieldInfo) -> str:
    if field.description:
        return field.description
    if get_origin(field.annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(field.annotation))
    return ""


def toml_of(value: object) -> str:
    """A value as TOML, on one line: what stands after the = of a key, in a file or an override."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_of(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{toml_of(key)} = {toml_of(item)}" for key, item in value.items() if item is not None)
            + "}"
        )
    # JSON's strings, numbers and booleans are TOML's too; only the DEL character must be escaped besides.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
