"""Conversion of trajectories to plain dictionaries and back; unknown fields survive.

Fields that have their default are left out. Unknown fields, of a newer version, go to `extra` and are written back at
the level they came from. `Sample` has no form here: it is derived, and never stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, get_args

import msgspec

from retcon.core.errors import RecordError
from retcon.core.types import Record, Trajectory

MOST_NAMED = 6
"""Most fields that an error names of an object that is not a trajectory."""


def to_dict(trajectory: Trajectory) -> dict[str, object]:
    """Return the trajectory as JSON types: dictionaries, lists, text, numbers, booleans."""
    return _write(trajectory)


def from_dict(obj: object, where: str = "") -> Trajectory:
    """Read the trajectory that `to_dict` wrote.

    Args:
        where: start of the error message, such as a file and line.

    Raises RecordError, naming the field (`turns[2].segments[0].ids`), where one is missing or of the wrong type.
    """
    if isinstance(obj, dict) and obj.keys().isdisjoint(("prompt", "turns")):
        found = f" (found {', '.join(list(obj)[:MOST_NAMED])})" if obj else ""
        raise RecordError(f"{where}: not a trajectory: missing prompt and turns{found}".removeprefix(": "))
    try:
        return msgspec.convert(_gather_extra(obj, Trajectory), Trajectory)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        parts = (where, path.strip(".`"), problem)
        raise RecordError(": ".join(part for part in parts if part)) from error
    except UnicodeEncodeError as error:  # a string where a number, an object or an enum value belongs
        raise RecordError(f"{where}: it is not Unicode: {error}".removeprefix(": ")) from error


def _gather_extra(value: Any, kind: type[Record]) -> Any:
    """Move the unknown fields of each object into its `extra`, which `convert` would drop."""
    if isinstance(value, list):
        return [_gather_extra(item, kind) for item in value]
    if not isinstance(value, dict):
        return value
    nested = _nested(kind)
    known = {name: _gather_extra(one, inner) if (inner := nested[name]) else one
             for name, one in value.items() if name in nested}  # fmt: skip
    extra = {name: one for name, one in value.items() if name not in nested}
    return {**known, "extra": extra} if extra else known


@cache
def _nested(kind: type[Record]) -> Mapping[str, type[Record] | None]:
    """Map each field except `extra` to the type of the records in it, or None."""
    return {field.name: _record_in(field.type) for field in msgspec.structs.fields(kind) if field.name != "extra"}


def _record_in(annotation: Any) -> type[Record] | None:
    if isinstance(annotation, type) and issubclass(annotation, Record):
        return annotation
    return next((found for one in get_args(annotation) if (found := _record_in(one)) is not None), None)


def _write(record: Record) -> dict[str, object]:
    required, optional = _fields_of(type(record))
    out = {name: _plain(getattr(record, name)) for name in required}
    out |= {name: _plain(value) for name, default in optional if (value := getattr(record, name)) != default}
    if extra := record.extra:
        out |= {name: value for name, value in extra.items() if name not in record.__struct_fields__}
    return out


@cache
def _fields_of(kind: type[Record]) -> tuple[Sequence[str], Sequence[tuple[str, object]]]:
    """Return the names of fields without a default, and (name, default) of the others except `extra`."""
    names, defaults = kind.__struct_fields__, kind.__struct_defaults__
    first = len(names) - len(defaults)
    pairs = zip(names[first:], defaults, strict=True)
    return names[:first], [(name, default) for name, default in pairs if name != "extra"]


def _plain(value: object) -> object:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, tuple):
        return [_write(item) for item in value] if value and isinstance(value[0], Record) else list(value)
    if isinstance(value, Record):
        return _write(value)
    return dict(value) if isinstance(value, Mapping) else value
