"""What a traceback says in a line."""

from __future__ import annotations

from collections.abc import Sequence


def error_line(lines: Sequence[str], error_type: str | None) -> str | None:
    """The last line that names this type of error, `NameError: name 'x' is not defined`; None where there is none. Its
    message may go on for further lines."""
    named = (line for line in reversed(lines) if line.partition(":")[0].rpartition(".")[2] == error_type)
    return next(named, None)
