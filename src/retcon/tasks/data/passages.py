"""What belongs to a question though it stands in a column of its own: Alpaca's `input`, a passage.

Programs' rows are left alone, as their `input` is that of a test, and so are prompts, which are whole by their name.
"""

from __future__ import annotations

from retcon.tasks.data.fields import Columns
from retcon.tasks.grading.cases import PLACES

INPUT = "input"
"""What an instruction is about: it stands after it."""
CONTEXTS = ("context", "passage", "article")
"""What a question is about: it stands before it. The first that has any text counts."""
_INSTRUCTION = "instruction"


def whole(row: Columns, column: str, asked: str) -> tuple[str, tuple[str, ...]]:
    """The question in `column` with what belongs to it, a blank line between, and the columns that this comes from."""
    if row.get(column) != asked or column == "prompt" or any(name in row for name in PLACES):
        return asked, ()
    about = next((name for name in CONTEXTS if _adds(row, name, column, asked)), "")
    given = INPUT if _adds(row, INPUT, column, asked) and (column == _INSTRUCTION or "output" not in row) else ""
    parts = [*([row[about].strip("\n")] if about else []), asked, *([row[given].strip("\n")] if given else [])]
    return "\n\n".join(parts), tuple(filter(None, (about, given)))


def _adds(row: Columns, name: str, column: str, asked: str) -> bool:
    """Whether a column has text that neither is in the question nor has it."""
    value = row.get(name)
    if name == column or not isinstance(value, str) or not value.strip():
        return False
    return value.strip() not in asked and asked.strip() not in value
