"""From a request's body to typed values, with errors that name the field and the nearest valid one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar, get_type_hints

import msgspec

from retcon.core.errors import nearest
from retcon.http.refusal import RequestRefused

T = TypeVar("T", bound=msgspec.Struct)

_PLACE = " - at `"
_PATH = re.compile(r"(?:key in )?\$\.?(.*)`", re.DOTALL)
_INDEX = re.compile(r"\[[^][]*+]")
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(.*)`")
_CHOICE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
SHOWN = 100
"""Characters of a name or value of the caller's that an error repeats."""


def parse(body: bytes, kind: type[T]) -> T:
    """The body as a `kind`.

    Read by the standard library's parser: it takes lone surrogates, which a model's program may hold, and whose error
    is then the program's own. Raises RequestRefused (400 for what is no JSON, 422 for what is no `kind`).
    """
    try:
        data = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "invalid_json", f"the body is not JSON: {error}") from error
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _named(str(error), kind) from error
    except UnicodeEncodeError as error:  # of the name of a field, or of what has to be one of some words
        raise RequestRefused.invalid(None, f"a name in it is not Unicode: {error.reason}") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _named(message: str, kind: type[msgspec.Struct]) -> RequestRefused:
    # msgspec's own words stand at the end: what the caller wrote may hold the same, thousands of times.
    said, _, place = message.rpartition(_PLACE)
    path = ""
    if (found := _PATH.fullmatch(place)) and _leads_somewhere(kind, found[1]):
        message, path = said, found[1]
    if unknown := _UNKNOWN.search(message):
        valid, name = _fields_at(kind, path), _shown(unknown[1])
        hint = nearest(unknown[1], valid) or f" (there are {', '.join(valid)})"
        return RequestRefused.invalid(_join(path, name), f"unknown field '{name}'{hint}")
    if missing := _MISSING.search(message):
        return RequestRefused.invalid(_join(path, missing[1]), f"the field '{missing[1]}' is missing")
    if choice := _CHOICE.search(message):
        valid = _choices_at(kind, path)
        what = f"'{_shown(choice[1])}' is not one of {', '.join(valid)}{nearest(choice[1], valid)}"
        return RequestRefused.invalid(path, what)
    return RequestRefused.invalid(path or None, message.replace("`", ""))


def _shown(name: str) -> str:
    return name if len(name) <= SHOWN else name[: SHOWN - 1] + "…"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields_at(kind: Any, path: str) -> list[str]:
    inner = _type_at(kind, path)
    return list(inner.__struct_fields__) if hasattr(inner, "__struct_fields__") else []


def _choices_at(kind: Any, path: str) -> list[str]:
    parent, _, name = path.rpartition(".")
    hint = get_type_hints(_type_at(kind, parent))[name]
    info = msgspec.inspect.type_info(hint)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return [str(v) for k in kinds if isinstance(k, msgspec.inspect.LiteralType) for v in k.values]


def _leads_somewhere(kind: Any, path: str) -> bool:
    """Whether a path is msgspec's own, and not part of a name that the caller chose."""
    for part in _parts(path):
        if kind is None or part not in (hints := get_type_hints(kind)):
            return False
        kind = _struct_in(msgspec.inspect.type_info(hints[part]))
    return True


def _parts(path: str) -> Iterator[str]:
    return filter(None, _INDEX.sub("", path).split("."))


def _type_at(kind: Any, path: str) -> Any:
    """The struct that a path such as `calls[3].limits` leads to."""
    for part in _parts(path):
        info = msgspec.inspect.type_info(get_type_hints(kind)[part])
        kind = _struct_in(info)
    return kind


def _struct_in(info: Any) -> Any:
    if isinstance(info, msgspec.inspect.StructType):
        return info.cls
    if isinstance(info, msgspec.inspect.ListType):
        return _struct_in(info.item_type)
    if isinstance(info, msgspec.inspect.UnionType):
        return next((found for part in info.types if (found := _struct_in(part)) is not None), None)
    return None
