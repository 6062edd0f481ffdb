"""Records of CSV and TSV: the values of each, and the line that it ends in."""

from __future__ import annotations

import csv
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

LONGEST = 2**25
"""Characters of a value. The csv module's own limit is 131,072, less than a question may have."""
TAB = "\t"
_limit = threading.Lock()  # the csv module's, which is the process's


def records(lines: Iterator[str], delimiter: str) -> Iterator[tuple[list[str], int]]:
    """The values of each record, none for an empty line, and the number of its last line.

    A value of a TSV that begins with a quote and does not go on as a quoted one is as it stands, quotes included, as
    long as the line has as many values as the first. Raises csv.Error.
    """
    if delimiter == TAB:
        yield from _tab_separated(lines)
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while (values := _next(reader)) is not None:
        yield values, reader.line_num


def _tab_separated(lines: Iterator[str]) -> Iterator[tuple[list[str], int]]:
    ahead: deque[str] = deque()  # read in search of a quote that closes
    width, number = 0, 0
    while True:
        taken: list[str] = []
        values, error = None, None
        try:
            values = _next(csv.reader(_noted(lines, ahead, taken), delimiter=TAB, strict=True))
        except csv.Error as wrong:
            error = wrong
        if not taken:
            return
        literal = taken[0].rstrip("\r\n").split(TAB)
        if values is None or len(values) not in (0, width or len(values)):
            if len(literal) == (width or len(literal)):
                ahead.extendleft(reversed(taken[1:]))
                values, taken = literal, taken[:1]
            elif error is not None:
                raise error
        number += len(taken)
        width = width or len(values or ())
        yield values or [], number


def _noted(lines: Iterator[str], ahead: deque[str], taken: list[str]) -> Iterator[str]:
    """The lines that come next, each noted as it is taken."""
    while (line := ahead.popleft() if ahead else next(lines, None)) is not None:
        taken.append(line)
        yield line


def _next(reader: Any) -> list[str] | None:
    with _limit:
        before = csv.field_size_limit(LONGEST)
        try:
            return next(reader, None)
        finally:
            csv.field_size_limit(before)
