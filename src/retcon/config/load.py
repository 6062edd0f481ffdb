"""Reading recipes: TOML and `section.key=value` overrides into a `Recipe`, with errors that name the place."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from retcon.config.complaints import complaint
from retcon.config.keys import all_keys, keys_in
from retcon.config.lines import Place, find_line
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import Chosen
from retcon.config.shipped import find_recipe
from retcon.config.stages import OWN, place_of_stage
from retcon.core.errors import RecipeError, nearest

_SHORT_NUMBER = re.compile(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?")
"""A number as people write it and TOML does not: .5, 2."""

Data = dict[str, Any]

ALL = (*SECTIONS, "stages")


def load_recipe(
    recipe: str | Path | None, overrides: Sequence[str] = (), *, text: str | None = None, reads: Sequence[str] = ALL
) -> Recipe:
    """A recipe, with overrides such as `rl.steps=40` on top; the last wins.

    recipe: its file, the text that names a file or a shipped recipe, such as `quickstart/saar`, or None for all
    defaults. text: what its file will hold, where it is yet to be written. reads: sections that matter to who asks, or
    of a section one key alone (`evaluate.seed`); an override of another is refused, as it would change nothing (what
    the file says of others is for other commands). An override's value is TOML; what TOML cannot read is taken as a
    bare string. Raises RecipeError: it names the file and the line (or the override), the key, and the nearest valid
    key or the allowed values; or the nearest recipe.
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
    """The recipe with one `section.key=value` changed; where that chooses another kind, without the keys that were set
    and that this kind lacks. Raises RecipeError that names the override."""
    return _with_overrides(recipe, [override])


def with_kinds(recipe: str | Path, overrides: Sequence[str]) -> Data:
    """What the recipe sets, section to key to value, with those of the overrides that choose a section's kind and can
    be read; not validated, as a kind may need more. Raises RecipeError for the recipe."""
    data: Data = load_recipe(recipe).model_dump(mode="json", exclude_unset=True)
    for override in filter(_chooses, overrides):
        with suppress(RecipeError):
            data = _overridden(data, override)
    return data


def _with_overrides(recipe: Recipe, overrides: Sequence[str], reads: Sequence[str] = ALL) -> Recipe:
    """All of them at once, as one may be right only with another; where they are wrong, the one that made them so is
    named."""
    # What was set and no more: the defaults of a kind are not those of another.
    data: Data = recipe.model_dump(mode="json", exclude_unset=True)
    culprit = ""
    # What chooses a kind first: other overrides may be of that kind's keys.
    for override in sorted(overrides, key=lambda override: not _chooses(override)):
        data = _overridden(data, override, reads)
        culprit = culprit or override
        with suppress(RecipeError):
            recipe = _validate(data, lambda _: "")
            culprit = ""
    return _validate(data, lambda _: f"override '{culprit}'") if culprit else recipe


def _overridden(data: Data, override: str, reads: Sequence[str] = ALL) -> Data:
    """`section.key=value`, or `stages.name.section.key=value`, in a copy of the data."""
    where = f"override '{override}'"
    if override.encode(errors="replace").decode() != override:
        raise RecipeError(f"{where}: it is not in UTF-8: a recipe cannot name such a file, rename it")
    name, equals, written = override.partition("=")
    section, dot, key = name.strip().partition(".")
    if not equals:
        raise RecipeError(f"{where}: write it as section.key=value, such as rl.steps=40")
    if not dot and section != "stages":
        known = [f"{name}.{key}" for name in reads if name in SECTIONS for key in all_keys(name)]
        hint = _homes(data, section, reads) or nearest(section, known)
        raise RecipeError(f"{where}: '{section}' has no section; write section.key=value{hint}")
    if section in ALL and section not in reads and f"{section}.{key}" not in reads:
        alone = ", ".join(one for one in reads if one.startswith(f"{section}."))
        hint = f", but for {alone}" if alone else _homes(data, key, reads)
        raise RecipeError(f"{where}: this command does not read [{section}]{hint}; it reads {', '.join(reads)}")
    value = _toml_value(written.strip())
    if section != "stages":
        return {**data, section: _changed(section, data.get(section, {}), key, value)}
    stages = [dict(stage) for stage in data.get("stages", ())]
    named, _, rest = key.partition(".")
    first, inner, last = rest.partition(".")
    stage = stages[place_of_stage([str(one.get("name")) for one in stages], named, where)] if named else {}
    if not rest or (not inner and first not in OWN):
        own = ", ".join(OWN)
        raise RecipeError(f"{where}: of a stage write stages.{named or 1}.section.key=value, or one of its own: {own}")
    stage[first] = _changed(first, stage.get(first, {}), last, value) if inner else value
    return {**data, "stages": stages}


def _homes(data: Data, key: str, sections: Sequence[str]) -> str:
    """` (did you mean 'a.x' or 'b.x'?)` of the sections that have the key: as they are, else in another kind."""
    known = [section for section in sections if section in SECTIONS]
    found = [section for section in known if key in keys_in(section, data.get(section, {}))]
    found = found or [section for section in known if key in all_keys(section)]
    found += [one.partition(".")[0] for one in sections if one.endswith(f".{key}")]
    said = " or ".join(f"'{section}.{key}'" for section in found)
    return f" (did you mean {said}?)" if said else ""


def _changed(section: str, keys: Data, key: str, value: object) -> Data:
    about = SECTIONS.get(section)
    return about.with_changes(keys, {key: value}) if about is not None else {**keys, key: value}


def _chooses(override: str) -> bool:
    """Whether an override sets the key that names a section's kind."""
    parts = override.partition("=")[0].strip().split(".")
    section, _, key = ".".join(parts[2:] if parts[0] == "stages" else parts).partition(".")
    about = SECTIONS.get(section)
    return about is not None and issubclass(about, Chosen) and key == about.chosen_by


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
    # A line break inside the argument could bring further keys in: such a value is a string.
    return values["value"] if list(values) == ["value"] else written


def _validate(data: Mapping[str, object], where: Callable[[Place], str]) -> Recipe:
    """`where(place)` says in words where that was set."""
    try:
        # As JSON, strictly: an array may be a tuple and an integer a float, but "3" is no 3 and true is no 1.
        return Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        place, said = complaint(_telling(error.errors()), data)
        raise RecipeError(f"{where(place)}: {said}") from error


def _telling(errors: Sequence[ErrorDetails]) -> ErrorDetails:
    """The first; but of a key that is missing, one that may have been written in its place."""
    first = errors[0]
    beside = [e for e in errors if e["type"] == "extra_forbidden" and e["loc"][:-1] == first["loc"][:-1]]
    return beside[0] if first["type"] == "missing" and beside else first
