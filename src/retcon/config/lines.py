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
    arrays: dict[str, int] = {}
    nearest, depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            names = _parts(header[2])
            if header[1] == "[[":
                arrays[names[0]] = arrays.get(names[0], -1) + 1
            table = (names[0], arrays[names[0]], *names[1:]) if names[0] in arrays else names
            here = table
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


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
