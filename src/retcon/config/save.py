"""Writing a recipe as TOML, each key with its description."""

from __future__ import annotations

import json
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from retcon.config.schema import Recipe, Section


def recipe_to_toml(recipe: Recipe) -> str:
    """The whole recipe as TOML that `load_recipe` reads back to an equal one, annotated by the keys' descriptions."""
    lines: list[str] = []
    for name in Recipe.model_fields:
        section: Section = getattr(recipe, name)
        lines += ["", f"[{name}]"]
        for key, field in type(section).model_fields.items():
            note = _note(field)
            lines.append(f"{key} = {_toml(getattr(section, key))}" + (f"  # {note}" if note else ""))
    return "\n".join(lines[1:]) + "\n"


def _note(field: FieldInfo) -> str:
    if field.description:
        return field.description
    if get_origin(field.annotation) is Literal:
        return " | ".join(str(choice) for choice in get_args(field.annotation))
    return ""


def _toml(value: object) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON's strings, numbers and booleans are TOML's too; only the DEL character must be escaped besides.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
