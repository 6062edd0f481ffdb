"""Which format a record has."""

from __future__ import annotations

from retcon.core.errors import RecordError, nearest
from retcon.transcripts.blocks import Blocks
from retcon.transcripts.chat import HERMES, MARKDOWN, MINT, SHAREGPT
from retcon.transcripts.items import find_items
from retcon.transcripts.messages import Messages
from retcon.transcripts.ours import Ours
from retcon.transcripts.text import PLACES, MarkdownText
from retcon.transcripts.types import Format, Json

# The order in which `auto` tries them: what is unmistakable first.
_FORMATS: tuple[Format, ...] = (Ours(), SHAREGPT, Blocks(), Messages(), HERMES, MINT, MARKDOWN, MarkdownText())
NAMES: tuple[str, ...] = (*dict.fromkeys(f.name for f in _FORMATS), "inspect")


class Detector:
    """Finds the format of one record after another; files tend to have one, which is tried first.

    name: `auto`, or one of NAMES. last: the format of the last record that had one. Raises RecordError for another
    name, with the nearest.
    """

    def __init__(self, name: str = "auto") -> None:
        if name != "auto" and name not in NAMES:
            raise RecordError(f"unknown format '{name}'{nearest(name, NAMES)}; one of auto, {', '.join(NAMES)}")
        wanted = "messages" if name == "inspect" else name
        self._formats = [f for f in _FORMATS if wanted in ("auto", f.name)]
        self.last: Format | None = None
        self.name = name

    def format_of(self, record: Json) -> Format | None:
        """The record's format. None: it is a transcript without any call. Raises RecordError where it is none."""
        if self.last is not None and self.last.matches(record):
            return self.last
        for candidate in self._formats:
            if candidate.matches(record):
                self.last = candidate
                return candidate
        if is_transcript(record):
            return None
        wanted = "of any known format" if self.name == "auto" else f"of format {self.name!r}"
        raise RecordError(f"no transcript {wanted}: {_found(record)}")


def is_transcript(record: Json) -> bool:
    """Whether a record at least has messages, or a text, though no call is in it."""
    if find_items(record) is not None:
        return True
    values = [record.get(name) for name in PLACES] if isinstance(record, dict) else []
    return any(isinstance(t, str) for v in values for t in (v if isinstance(v, list) else [v]))


def _found(record: Json) -> str:
    if isinstance(record, dict):
        return f"an object with {', '.join(list(record)[:8]) or 'no keys'}"
    return f"found {type(record).__name__}"
