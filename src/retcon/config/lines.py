"""Where in a TOML file something is set: for messages, which a parser that keeps no places cannot give."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*+(\[\[?)\s*+([^\]\s#]++)\s*+\]")
_KEY = re.compile(r"\s*+((?:\"?[\w-]++\"?\s*+\.\s*+){0,3}+\"?[\w-]++\"?)\s*+=")

Place = tuple[str | int, ...]
"""Names of tables and keys from the top on; of a table in an array also its number there, from 0."""


def find_line(text: str, *place: str | int) -> int:
    """The number (from 1) of the line that sets what `place` names, else of the first that sets a part of it, else of
    the one that opens what is nearest around it, else 1."""
    table: Place = ()
    arrays: dict[Place, int] = {}
    nearest, depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            names = _parts(header[2])[: len(place) + 1]  # one that is deeper is no part of it, however deep
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
    """The place of a table. arrays: of each array of tables so far its place and the number of its last one, which
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
