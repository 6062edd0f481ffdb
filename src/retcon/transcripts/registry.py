"""The formats that are known: a module in `formats` registers its own, and no list of them stands anywhere.

A format of a user's own is named by where it stands, `my_package.my_module:MY_FORMAT`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TypeVar

from retcon.core.errors import RecordError, nearest
from retcon.core.registry import at_path
from retcon.transcripts.reading.dialects import Dialect
from retcon.transcripts.types import Format

_FORMATS: list[Format] = []
_DIALECTS: list[Dialect] = []
_F = TypeVar("_F", bound=Format)


def register(format: _F) -> _F:
    """Make a format known. One name may have several layouts, each a format of its own."""
    _FORMATS.append(format)
    return format


def register_dialect(dialect: Dialect) -> None:
    """Make a way of writing calls into text known to the formats that may hold any (ShareGPT)."""
    _DIALECTS.append(dialect)


@cache
def formats() -> Sequence[Format]:
    """All of them, what is unmistakable first."""
    _load()
    return sorted(_FORMATS, key=lambda f: (f.certainty, f.name))


@cache
def dialects() -> Sequence[Dialect]:
    """All of them, what is unmistakable first; Markdown last, whose fences may stand in any text."""
    _load()
    return sorted(_DIALECTS, key=lambda d: (d.certainty, d.name))


def names() -> Sequence[str]:
    """What the formats are called, in the order of the alphabet."""
    return sorted({name for f in formats() for name in (f.name, *f.aliases)})


def named(name: str) -> Sequence[Format]:
    """The formats of a name; of `auto` all. Raises RecordError for an unknown one, with the nearest."""
    if name == "auto":
        return formats()
    if ":" in name:
        return [_imported(name)]
    found = [f for f in formats() if name in (f.name, *f.aliases)]
    if not found:
        raise RecordError(f"unknown format '{name}'{nearest(name, names())}; one of auto, {', '.join(names())}")
    return found


def _imported(place: str) -> Format:
    try:
        found: Format = at_path(place)
    except ImportError as error:
        raise RecordError(f"the format '{place}' cannot be imported: {error}") from error
    return found


@cache
def _load() -> None:
    package = import_module("retcon.transcripts.formats")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
