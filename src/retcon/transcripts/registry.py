"""The transcript formats and dialects that are known: instances in the modules of `formats`, or plug-ins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from retcon.core.errors import RecordError
from retcon.core.registry import InstanceRegistry
from retcon.transcripts.reading.dialects import Dialect
from retcon.transcripts.types import Format

FORMATS = InstanceRegistry("transcript_format", RecordError, ("auto",), base=Format)  # type: ignore[type-abstract]
DIALECTS = InstanceRegistry("dialect", base=Dialect)


@cache
def formats() -> Sequence[Format]:
    """All formats, the most certain first."""
    return sorted(FORMATS.all(), key=lambda f: (f.certainty, f.name))


@cache
def dialects() -> Sequence[Dialect]:
    """All dialects, the most certain first; Markdown last, as any text may have fences."""
    return sorted(DIALECTS.all(), key=lambda d: (d.certainty, d.name))


def named(name: str) -> Sequence[Format]:
    """The formats of a name, or at an import path; of `auto` all. Raises RecordError with the nearest name."""
    return formats() if name == "auto" else FORMATS.find_all(name)
