"""Where a traceback enters the program: which of its frames are the program's own, and the lines that they name."""

from __future__ import annotations

import re

HEADING = r"Traceback \(most recent call last\)"
# Numbers of lines are short here, as Python makes no number of very many digits.
_CELL = re.compile(r"Cell In ?\[\d+\], line (?P<line>\d{1,9})(?!\d)(?P<inside>, in (?!<module|<cell line))?")
"""A frame in a cell: at its top, or inside a function that this one or an earlier one defines."""
_OLD_CELL = re.compile(
    r"<ipython-input[^>\n]*>(?: in <(?:module|cell line)[^\n]*|:\d+[ \t]*)\n(?:[^\n]*\n){0,9}?-+> ?(\d{1,9})"
)
"""A frame at the top of a cell, as IPython wrote it before; its line has the arrow."""
_FILE = re.compile(r'File "[^"\n]*", line (\d{1,9}), in <(?:module|cell line)')
_HEADED = re.compile(rf"^[^|\n]*{HEADING}", re.MULTILINE)
"""A traceback that is no part of a group's."""
_OWN_FRAME = re.compile(r'File "<[^"\n]*>", line (\d{1,9}), in <(?:module|cell line)')
"""A frame at the top of a program that stands in no file; a harness that runs it may have one too."""
_ARROW = re.compile(r"^-+> ?(\d{1,9})", re.MULTILINE)


def entry(text: str) -> int | None:
    """Where a traceback enters the program, 1-based; of exceptions that caused each other, the furthest place, so that
    nothing that ran counts as if it had not."""
    old = text.find("<ipython-input")
    if old >= 0 and (found := _ARROW.search(text, old)):
        return max(map(int, _OLD_CELL.findall(text)), default=int(found[1]))
    if lines := _OWN_FRAME.findall(text):
        return max(map(int, lines))
    if cells := list(_CELL.finditer(text)):
        own = [cell for cell in cells if not cell["inside"]]
        return max(int(cell["line"]) for cell in own or cells)
    last = max((heading.end() for heading in _HEADED.finditer(text)), default=0)
    found = _FILE.search(text, last) or _FILE.search(text)
    return int(found[1]) if found else None
