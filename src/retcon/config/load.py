"""Reading recipes: TOML and `section.key=value` overrides into a `Recipe`, with errors that name the place."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from retcon.config.keys import all_keys, homes
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import Chosen, Section
from retcon.core.errors import RecipeError, nearest

_HEADER = re.compile(r"\s*\[\s*\"?([\w-]+)\"?\s*\]")
_KEY = re.compile(r"\s*\"?([\w-]+)\"?(?:\s*\.\s*\"?([\w-]+)\"?)?\s*=")
_SHORT_NUMBER = re.compile(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?")
"""A number as people write it and TOML does not: .5, 2."""


def load_recipe(path: Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path` (all defaults where None), with overrides such as `rl.steps=40` on top; the last wins.

    An override's value is TOML; what TOML cannot read is taken as a bare string. Raises RecipeError: it names the file
    and the line (or the override), the key, and the nearest valid key or the allowed values.
    """
    text = "" if path is None else _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    recipe = _validate(data, lambda section, key: f"{path}, line {find_line(text, section, key)}")
    # What chooses a kind first: other overrides may be of that kind's keys.
    for override in sorted(overrides, key=lambda override: not _chooses(override)):
        recipe = apply_override(recipe, override)
    return recipe


def apply_override(recipe: Recipe, override: str) -> Recipe:
    """The recipe with one `section.key=value` changed; where that chooses another kind, without the keys that were set
    and that this kind lacks. Raises RecipeError that names the override."""
    where = f"override '{override}'"
    name, equals, written = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals:
        raise RecipeError(f"{where}: write it as section.key=value, such as rl.steps=40")
    if not dot:
        known = [f"{s}.{k}" for s in SECTIONS for k in all_keys(s)]
        same = next((home for home in known if home.endswith(f".{section}")), None)
        hint = f" (did you mean '{same}'?)" if same else nearest(section, known)
        raise RecipeError(f"{where}: '{section}' has no section; write section.key=value{hint}")
    # What was set and no more: the defaults of a kind are not those of another.
    data: dict[str, dict[str, object]] = recipe.model_dump(mode="json", exclude_unset=True)
    value = _toml_value(written.strip())
    keys = {**data.get(section, {}), key: value}
    if _chooses(override) and isinstance(value, str):
        with suppress(RecipeError):  # unknown: told below
            fields = _kind(section, keys).model_fields
            keys = {name: value for name, value in keys.items() if name in fields}
    return _validate({**data, section: keys}, lambda _section, _key: where)


def _chooses(override: str) -> bool:
    """Whether an override sets the key that names a section's kind."""
    section, _, key = override.partition("=")[0].strip().partition(".")
    about = SECTIONS.get(section)
    return about is not None and issubclass(about, Chosen) and key == about.chosen_by


def _kind(section: str, keys: Mapping[str, object]) -> type[Section]:
    """The class of a section with these keys. Raises RecipeError where its kind is unknown."""
    about = SECTIONS[section]
    return about.kind_in(keys) if issubclass(about, Chosen) else about


def find_line(text: str, section: str, key: str | None = None) -> int:
    """The number (from 1) of the line that sets `section.key`, else of the one that opens the section, else 1."""
    current, opened = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            current = header[1]
            opened = number if current == section else opened
        elif found := _KEY.match(line):
            first, second = found[1], found[2]
            in_section = current == section and first == key
            dotted = not current and first == section and second in (key, None)
            if in_section or dotted:
                return number
    return opened


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such recipe file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: the recipe cannot be read: {error}") from error


def _toml_value(written: str) -> object:
    if _SHORT_NUMBER.fullmatch(written):
        return float(written)
    try:
        values = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    # A line break inside the argument could bring further keys in: such a value is a string.
    return values["value"] if list(values) == ["value"] else written


def _validate(data: Mapping[str, object], where: Callable[[str, str | None], str]) -> Recipe:
    """`where(section, key)` says in words where that key was set."""
    try:
        # As JSON, strictly: an array may be a tuple and an integer a float, but "3" is no 3 and true is no 1.
        return Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        # A rule over several sections has no place of its own: its message begins with the one to look at.
        place = first["loc"][:2] or (first["msg"].removeprefix("Value error, ").partition(":")[0],)
        section, key = ([str(part) for part in place] + ["", ""])[:2]
        said = _complaint(first, section, key, data.get(section))
        raise RecipeError(f"{where(section, key or None)}: {said}") from error


def _complaint(error: ErrorDetails, section: str, key: str, given: object) -> str:
    """given: what was written in the section."""
    if section not in SECTIONS:
        return f"unknown section '{section}'{nearest(section, SECTIONS)}; sections: {', '.join(SECTIONS)}"
    if not key:
        # The section as a whole: a rule over its keys, or a plain value where a table belongs.
        return f"{section}: {error['msg'].removeprefix('Value error, ').removeprefix(f'{section}: ')}"
    if error["type"] == "extra_forbidden" and isinstance(given, Mapping) and key in given:
        known = _kind(section, given).model_fields
        about = SECTIONS[section]
        if owners := homes(section, key):
            chosen_by = about.chosen_by if issubclass(about, Chosen) else ""
            return f"{section}.{key} belongs to {chosen_by} = {' or '.join(map(json.dumps, owners))}"
        return f"unknown key '{key}' in [{section}]{nearest(key, all_keys(section))}; keys: {', '.join(known)}"
    value = json.dumps(error["input"], default=str)
    message = error["msg"].removeprefix("Value error, ")
    return f"{section}.{key} = {value} is not allowed: {message[:1].lower()}{message[1:]}"
