"""Formats of third-party records, read as trajectories and written back repaired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, cast, runtime_checkable

import msgspec

from retcon.chat.types import TextMessage
from retcon.core.errors import RecordError
from retcon.core.types import Pair, Trajectory
from retcon.purify.offline import RepairResult

Json = object
"""A JSON value as msgspec decodes it."""
NOT_JSON = (msgspec.DecodeError, UnicodeEncodeError, RecursionError)
"""Errors of msgspec for invalid JSON, lone surrogates and endless brackets among it."""


def json_in(text: str) -> Json:
    """Return the value of a JSON text; None for any other text."""
    try:
        return cast(Json, msgspec.json.decode(text))
    except NOT_JSON:
        return None


class Certainty(IntEnum):
    """Certainty that a matching record is of a format."""

    LAYOUT = 0
    """Keys that no other has."""
    CALLS = 1
    """Calls kept apart from the text of messages."""
    TAGS = 2
    """Tags in the text of messages."""
    FENCES = 3
    """Markdown in the text of messages."""
    TAGGED_TEXT = 4
    """Tags in one text."""
    TEXT = 5
    """Markdown in one text."""


class Speakers(NamedTuple):
    """Speakers in a trajectory, whose segments do not name them.

    before: messages before the first turn; after: after each turn. learnt: of each turn, whether the record lets it
    be learnt from. system: the system prompt, where the record keeps it apart, or "". thoughts: the reasoning that
    begins each turn's text, or ""; empty where it is unknown."""

    before: Sequence[TextMessage]
    after: Sequence[Sequence[TextMessage]]
    learnt: Sequence[bool]
    system: str = ""
    thoughts: Sequence[str] = ()


class Reading(Protocol):
    """Record that was read: one transcript, or samples of one question."""

    trajectories: Sequence[Trajectory]

    @property
    def speakers(self) -> Sequence[Speakers]:
        """Speakers of each trajectory."""

    def with_repairs(self, results: Sequence[RepairResult]) -> Json:
        """Return a new record with the splices, a result for each trajectory."""

    def pairs(self, results: Sequence[RepairResult]) -> Iterator[Pair]:
        """Yield failure and replacement of each splice, as messages or text."""


@runtime_checkable
class Format(Protocol):
    """Layout of records, which are objects or lists of messages.

    aliases: other names of it. marks: typical words of its records (keys, types, roles, tags), to find the format
    nearest to an unknown record."""

    @property
    def name(self) -> str: ...

    @property
    def certainty(self) -> Certainty: ...

    @property
    def aliases(self) -> Sequence[str]: ...

    @property
    def marks(self) -> Sequence[str]: ...

    def matches(self, record: Json) -> bool:
        """Return whether a record has this layout."""

    def clean(self, record: Json) -> int | None:
        """Count answered calls if plainly none failed; else None, or 0 for another layout."""
        try:
            turns = [turn for t in self.read(record, "").trajectories for turn in t.turns]
        except RecordError:
            return None
        seen = [o.status for turn in turns for o in turn.observations]
        return len(seen) if set(seen) <= {"ok"} else None

    def read(self, record: Json, id: str) -> Reading:
        """Read the record's transcripts; the only one is named `id`. Raises RecordError, naming the field."""
