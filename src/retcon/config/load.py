"""Reader of recipes: TOML and overrides into a `Recipe`, with errors by line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from retcon.config.schema import CHANGED, OWN, SECTIONS, Recipe, StageSection, stage_index
from retcon.config.section import PluginSection, Section
from retcon.core.errors import RecipeError, nearest, nearest_path


def variants(section: str) -> dict[str, type[Section]]:
    """Map kinds to the section's classes, the default first; "" for a section without kinds."""
    about = SECTIONS[section]
    if not issubclass(about, PluginSection):
        return {"": about}
    default = about.model_fields[about.chosen_by].default
    return dict(sorted(about.kinds.all(), key=lambda kind: kind[0] != default))


def all_keys(section: str) -> tuple[str, ...]:
    """Return the keys of a section, of all its kinds."""
    return tuple(dict.fromkeys(key for about in variants(section).values() for key in about.model_fields))


def keys_in(section: str, given: Mapping[str, object]) -> tuple[str, ...]:
    """Return the valid keys for the kind that `given` chooses; of all kinds where it is unknown."""
    about = SECTIONS[section]
    try:
        return tuple((about.kind_in(given) if issubclass(about, PluginSection) else about).model_fields)
    except RecipeError:
        return all_keys(section)


def kinds_with_key(section: str, key: str) -> list[str]:
    """Return the section's kinds that have this key; [] for a section without kinds."""
    return [kind for kind, about in variants(section).items() if kind and key in about.model_fields]


def own_keys(section: str, kind: str) -> tuple[str, ...]:
    """Return the keys of a kind that the section's base class lacks."""
    shared = SECTIONS[section].model_fields
    return tuple(key for key in variants(section)[kind].model_fields if key not in shared)


_HEADER = re.compile(r"\s*+(\[\[?)\s*+([^\]\s#]++)\s*+\]")
_KEY = re.compile(r"\s*+((?:\"?[\w-]++\"?\s*+\.\s*+){0,3}+\"?[\w-]++\"?)\s*+=")

Place = tuple[str | int, ...]
"""Path of table names and keys from the top; of a table in an array also its number there, from 0."""


def find_line(text: str, *place: str | int) -> int:
    """Return the number (from 1) of the line that sets `place`. Without one: of the first line that sets a part of it,
    else of the one that opens the nearest table around it, else 1."""
    table: Place = ()
    arrays: dict[Place, int] = {}
    nearest, depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            names = _parts(header[2])[: len(place) + 1]  # deeper tables are not a part of it, however deep
            here = table = _table(names, arrays, adds=header[1] == "[[")
        elif key := _KEY.match(line):
            here = (*table, *_parts(key[1]))
        else:
            continue
        if here == place:
            return number
        if len(here) > depth and here == place[: len(here)]:
            nearest, depth = number, len(here)
        elif len(place) > depth and here[: len(place)] == place:
            nearest, depth = number, len(place)
    return nearest


def _table(names: tuple[str, ...], arrays: dict[Place, int], *, adds: bool) -> Place:
    """Return the place of a table. arrays: place of each array of tables so far to the number of its last table, which
    grows where this header `adds` one."""
    table: Place = ()
    for at, name in enumerate(names, start=1):
        table = (*table, name)
        if adds and at == len(names):
            arrays[table] = arrays.get(table, -1) + 1
        if table in arrays:
            table = (*table, arrays[table])
    return table


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))


PYDANTIC_PREFIX = "Value error, "
FEW = 8
"""Keys that an error lists; of a section with more, the nearest three."""


def explain_error(error: ErrorDetails, data: Mapping[str, Any]) -> tuple[Place, str]:
    """Turn a pydantic error into the place and the message. data: the recipe as read."""
    at = error["loc"]
    if at[:1] != ("stages",):
        place = _place(error, at)
        return (*place, *at[2:]), _explain(error, place, at[2:], data.get(str(place[0])) if place else None)
    if len(at) < 2:
        return at, "stages: write each as [[stages]], a table with a name, steps, and what it changes"
    number, stage = int(at[1]), data["stages"][int(at[1])]
    title = f"stage {number + 1}"
    if isinstance(stage, Mapping) and isinstance(name := stage.get("name"), str):
        title = f"{title}, {name}"
    inner = at[2:]
    if len(inner) < 2 and inner[:1] and inner[0] not in CHANGED:
        return at, f"{title}: {_explain_stage(error, str(inner[0]))}"
    place = _place(error, inner)
    # The stage's keys on top of the recipe's: only together do they have the kind.
    section = str(place[0]) if place else ""
    changes = stage.get(section) if isinstance(stage, Mapping) else None
    given = changes
    if isinstance(changes, Mapping) and isinstance(whole := data.get(section, {}), Mapping) and section in SECTIONS:
        given = SECTIONS[section].with_changes(whole, changes)
    # A key that the stage does not set itself may contradict one that it sets.
    unset = not isinstance(changes, Mapping) or (place[1:] and place[1] not in changes)
    shown = at[:2] if unset else (*at[:2], *place, *inner[2:])
    return shown, f"{title}: {_explain(error, place, inner[2:], given)}"


def _place(error: ErrorDetails, at: Place) -> tuple[str, ...]:
    """Return (section, key), or the section alone."""
    if at:
        return tuple(str(part) for part in at[:2])
    # The error of a rule over several sections has no location; its message begins with the section.
    return (error["msg"].removeprefix(PYDANTIC_PREFIX).partition(":")[0],)


def _explain_stage(error: ErrorDetails, key: str) -> str:
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


def _explain(error: ErrorDetails, place: tuple[str, ...], within: Place, given: object) -> str:
    """Return the message. within: path inside the key's value. given: the section as written."""
    section, key = ([*place, "", ""])[:2]
    if section not in SECTIONS:
        return f"unknown section '{section}'{nearest(section, SECTIONS)}; sections: {', '.join(SECTIONS)}"
    if not key:
        # The section as a whole: a rule over its keys, or a plain value where a table belongs.
        return f"{section}: {error['msg'].removeprefix(PYDANTIC_PREFIX).removeprefix(f'{section}: ')}"
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
        if owners := kinds_with_key(section, key):
            chosen_by = about.chosen_by if issubclass(about, PluginSection) else ""
            return f"{section}.{key} belongs to {chosen_by} = {' or '.join(map(json.dumps, owners))}"
        return f"unknown key '{key}' in [{section}]{_nearest_keys(key, known, section)}"
    return _not_allowed(error, f"{section}.{key}")


def _nearest_keys(key: str, known: Sequence[str], section: str) -> str:
    """Suggest keys for an unknown one: the nearest, up to three, or all where there are few."""
    hint = nearest(key, known) or nearest(key, all_keys(section))
    if len(known) <= FEW:
        return f"{hint}; keys: {', '.join(known)}"
    close = get_close_matches(key, known, n=3, cutoff=0.0)
    return f"{hint}; the nearest of its {len(known)} keys: {', '.join(close)}"


def _not_allowed(error: ErrorDetails, key: str) -> str:
    value = json.dumps(error["input"], default=str)
    message = error["msg"].removeprefix(PYDANTIC_PREFIX)
    return f"{key} = {value} is not allowed: {message[:1].lower()}{message[1:]}"


def _kind(section: str, keys: Mapping[str, object]) -> type[Section]:
    """Return the class of a section with these keys. Raises RecipeError for an unknown kind."""
    about = SECTIONS[section]
    return about.kind_in(keys) if issubclass(about, PluginSection) else about


_PACKAGE = Path(__file__).resolve().parents[1]


def _shipped(name: str) -> Path:
    """Return a shipped folder: inside the package in a wheel, at the top in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parents[1] / name


def examples() -> Path:
    """Return the folder of examples."""
    return _shipped("examples")


@cache
def shipped_recipes() -> Mapping[str, Path]:
    """Map names such as `quickstart/saar` to files. Cached: planning a comparison looks up dozens of recipes."""
    home = _shipped("recipes")
    files = sorted(home.rglob("*.toml"))
    return MappingProxyType({str(file.relative_to(home).with_suffix("")): file for file in files})


def find_recipe(name_or_path: str) -> Path:
    """Find the file of a recipe by path or shipped name. Raises RecipeError with the nearest name, and for an override
    in its place."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    name = name_or_path.removesuffix(".toml").removeprefix("recipes/")
    if name in shipped:
        return shipped[name]
    if "=" in name:
        raise RecipeError(
            f"'{name_or_path}' changes a recipe, and none is named before it: write RECIPE KEY=VALUE; `retcon recipes` "
            "lists those that come with Retcon, and `own` is for your problems and model"
        )
    hint = nearest_path(path, (".toml",)) or nearest(name, shipped)
    raise RecipeError(f"no recipe '{name_or_path}'{hint}: it is neither a file nor a name that `retcon recipes` lists")


_SHORT_NUMBER = re.compile(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?")
"""A number that TOML does not allow but people write: .5, 2."""

Data = dict[str, Any]

ALL = (*SECTIONS, "stages")


def load_recipe(
    recipe: str | Path | None, overrides: Sequence[str] = (), *, text: str | None = None, reads: Sequence[str] = ALL
) -> Recipe:
    """Load a recipe, with overrides such as `rl.steps=40` on top; the last wins.

    recipe: its file, its path or shipped name as text, such as `quickstart/saar`, or None for all defaults. text:
    future content of its file, where that is yet to be written. reads: sections that the caller reads, or one key of a
    section (`evaluate.seed`); an override of another is refused, as it would change nothing (the file may set them for
    other commands). An override's value is TOML; any other text is taken as a bare string. Raises RecipeError, which
    names the file and the line (or the override), the key, and the nearest valid key or the allowed values; or the
    nearest recipe.
    """
    path = Path(recipe) if isinstance(recipe, str) else recipe
    if text is None:
        path = find_recipe(recipe) if isinstance(recipe, str) else recipe
        text = "" if path is None else _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = "; a recipe names its file of problems as task.path, and `retcon eval` takes it as --data"
        hint = "" if path is None or path.suffix == ".toml" else hint
        raise RecipeError(f"{path}: not a recipe, as it is not valid TOML: {error}{hint}") from error
    read = _validate(data, lambda place: f"{path}, line {find_line(text, *place)}")
    return _with_overrides(read, overrides, reads) if overrides else read


def apply_override(recipe: Recipe, override: str) -> Recipe:
    """Return the recipe with one `section.key=value` changed. A new kind drops the set keys that it lacks. Raises
    RecipeError that names the override."""
    return _with_overrides(recipe, [override])


def with_kinds(recipe: str | Path, overrides: Sequence[str]) -> Data:
    """Return the recipe's set keys, with overrides that choose kinds applied: section to key to value. Not validated,
    as a kind may need more; invalid overrides are ignored. Raises RecipeError for the recipe."""
    data: Data = load_recipe(recipe).model_dump(mode="json", exclude_unset=True)
    for override in filter(_chooses, overrides):
        with suppress(RecipeError):
            data = _overridden(data, override)
    return data


def _with_overrides(recipe: Recipe, overrides: Sequence[str], reads: Sequence[str] = ALL) -> Recipe:
    """Apply all overrides at once, as one may be valid only with another; an error names the first culprit."""
    # Set keys only: kinds differ in their defaults.
    data: Data = recipe.model_dump(mode="json", exclude_unset=True)
    culprit = ""
    # Kinds first: other overrides may be of that kind's keys.
    for override in sorted(overrides, key=lambda override: not _chooses(override)):
        data = _overridden(data, override, reads)
        culprit = culprit or override
        with suppress(RecipeError):
            recipe = _validate(data, lambda _: "")
            culprit = ""

    def named(place: Place) -> str:
        """Return the override of a place; else the first that was not valid, such as by a rule over several keys."""
        keys = {override.partition("=")[0].strip(): override for override in overrides}
        return f"override '{keys.get('.'.join(map(str, place[:2])), culprit)}'"

    return _validate(data, named) if culprit else recipe


def _overridden(data: Data, override: str, reads: Sequence[str] = ALL) -> Data:
    """Apply `section.key=value`, or `stages.name.section.key=value`, to a copy of the data."""
    where = f"override '{override}'"
    if override.encode(errors="replace").decode() != override:
        raise RecipeError(f"{where}: it is not in UTF-8: a recipe cannot name such a file, rename it")
    name, equals, written = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals:
        raise RecipeError(f"{where}: write it as section.key=value, such as rl.steps=40")
    if not dot and section != "stages":
        known = [f"{name}.{key}" for name in reads if name in SECTIONS for key in all_keys(name)]
        hint = _suggest_sections(data, section, reads) or nearest(section, known)
        raise RecipeError(f"{where}: '{section}' has no section; write section.key=value{hint}")
    if section in ALL and section not in reads and f"{section}.{key}" not in reads:
        alone = ", ".join(one for one in reads if one.startswith(f"{section}."))
        hint = f", except {alone}" if alone else _suggest_sections(data, key, reads)
        raise RecipeError(f"{where}: this command does not read [{section}]{hint}; it reads {', '.join(reads)}")
    value = _toml_value(written.strip())
    if section != "stages":
        return {**data, section: _changed(section, data.get(section, {}), key, value)}
    stages = [dict(stage) for stage in data.get("stages", ())]
    named, _, rest = key.partition(".")
    first, inner, last = rest.partition(".")
    stage = stages[stage_index([str(one.get("name")) for one in stages], named, where)] if named else {}
    if not rest or (not inner and first not in OWN):
        own = ", ".join(OWN)
        raise RecipeError(f"{where}: of a stage write stages.{named or 1}.section.key=value, or one of its own: {own}")
    stage[first] = _changed(first, stage.get(first, {}), last, value) if inner else value
    return {**data, "stages": stages}


def _suggest_sections(data: Data, key: str, sections: Sequence[str]) -> str:
    """Return ` (did you mean 'a.x' or 'b.x'?)` for the sections that have the key, first in their present kind."""
    known = [section for section in sections if section in SECTIONS]
    found = [section for section in known if key in keys_in(section, data.get(section, {}))]
    found = found or [section for section in known if key in all_keys(section)]
    found += [one.partition(".")[0] for one in sections if one.endswith(f".{key}")]
    close = " or ".join(f"'{section}.{key}'" for section in found)
    return f" (did you mean {close}?)" if close else ""


def _changed(section: str, keys: Data, key: str, value: object) -> Data:
    about = SECTIONS.get(section)
    return about.with_changes(keys, {key: value}) if about is not None else {**keys, key: value}


def _chooses(override: str) -> bool:
    """Return whether an override sets the key that names a section's kind."""
    parts = override.partition("=")[0].strip().split(".")
    section, _, key = ".".join(parts[2:] if parts[0] == "stages" else parts).partition(".")
    about = SECTIONS.get(section)
    return about is not None and issubclass(about, PluginSection) and key == about.chosen_by


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
    except FileNotFoundError as error:
        raise RecipeError(f"{path}: no such recipe file") from error
    except UnicodeDecodeError as error:
        line = 1 + error.object[: error.start].count(b"\n")
        why = f"it is not UTF-8 (byte 0x{error.object[error.start]:02x}): save it as such"
        raise RecipeError(f"{path}, line {line}: the recipe cannot be read: {why}") from error
    except OSError as error:
        raise RecipeError(f"{path}: the recipe cannot be read: {error}") from error


def _toml_value(written: str) -> object:
    if _SHORT_NUMBER.fullmatch(written):
        return float(written)
    try:
        values = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    # A line break inside the argument could add further keys: such a value is a string.
    return values["value"] if list(values) == ["value"] else written


def _validate(data: Mapping[str, object], where: Callable[[Place], str]) -> Recipe:
    """Validate the data. where: describes the source of a place."""
    try:
        # Strict JSON mode: an array may be a tuple and an integer a float, but "3" is not 3 and true is not 1.
        return Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        place, message = explain_error(_choose_error(error.errors()), data)
        raise RecipeError(f"{where(place)}: {message}") from error


def _choose_error(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """Return the first error; for a missing key, that of an unknown key beside it, if any."""
    first = errors[0]
    beside = [e for e in errors if e["type"] == "extra_forbidden" and e["loc"][:-1] == first["loc"][:-1]]
    return beside[0] if first["type"] == "missing" and beside else first


def recipe_to_toml(recipe: Recipe) -> str:
    """Render the recipe as TOML with the keys' descriptions; `load_recipe` reads it back equal."""
    lines: list[str] = []
    for name in SECTIONS:
        lines += ["", *_section(name, getattr(recipe, name))]
    if recipe.stages:
        for table in recipe.model_dump(mode="json")["stages"]:
            lines += ["", *_stage(table)]
    return "\n".join(lines[1:]) + "\n"


def reference() -> str:
    """Render every key with its default as TOML; keys of kinds other than the default are comments."""
    recipe = Recipe()
    lines: list[str] = []
    for name in SECTIONS:
        section: Section = getattr(recipe, name)
        lines += ["", *_section(name, section)]
        for kind, about in variants(name).items():
            keys = own_keys(name, kind) if isinstance(section, PluginSection) and not isinstance(section, about) else ()
            if isinstance(section, PluginSection) and keys:
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
    """Render an example in comments, as an empty recipe has no stages."""
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
    if isinstance(section, PluginSection) and key == section.chosen_by:
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
    """Render a value as one line of TOML."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(toml_of(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{toml_of(key)} = {toml_of(item)}" for key, item in value.items() if item is not None)
            + "}"
        )
    # JSON's strings, numbers and booleans are valid TOML; only the DEL character must be escaped too.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
