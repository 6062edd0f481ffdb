"""Whole transcripts as one text of Markdown, each sample of a question a text of its own (ToRA)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retcon.core.errors import RecordError
from retcon.core.pair import Pair
from retcon.core.types import Trajectory
from retcon.purify.offline import Purified
from retcon.purify.pairs import preference_pairs
from retcon.transcripts.dialects import Markdown
from retcon.transcripts.items import context_of
from retcon.transcripts.pieces import Piece, PieceReading
from retcon.transcripts.types import Json, Reading

PLACES = ("text", "completion", "response", "output", "generation", "code", "solution", "answer", "content")
_DIALECT = Markdown()


class MarkdownText:
    name = "markdown"

    def matches(self, record: Json) -> bool:
        return _place(record) is not None

    def clean(self, record: Json) -> int | None:
        count = 0
        for text in _texts(record)[1]:
            inside = _DIALECT.clean_inside(text)
            if inside is None:
                return None
            count += inside
        return count

    def read(self, record: Json, id: str) -> Reading:
        place, texts = _texts(record)
        if place is None:
            raise RecordError(f"no text with ```python and ```output blocks in any of {', '.join(PLACES)}")
        context = context_of(record)
        return _TextReading(record, place, texts, [
            _read(text, id if len(texts) == 1 else f"{id}.{n}", context) for n, text in enumerate(texts)
        ])  # fmt: skip


class _TextReading:
    def __init__(self, record: Json, place: str, texts: Sequence[str], readings: Sequence[PieceReading]) -> None:
        self._record = record
        self._place = place
        self._readings = readings
        self.trajectories: Sequence[Trajectory] = [r.trajectory for r in readings]

    def purified(self, results: Sequence[Purified]) -> Json:
        if not isinstance(self._record, dict):
            raise RecordError("a record of text is an object")
        new = [str(reading.items(own.splices)[0]) for reading, own in zip(self._readings, results, strict=True)]
        value: Json = new if isinstance(self._record[self._place], list) else new[0]
        return {**self._record, self._place: value}

    def pairs(self, results: Sequence[Purified]) -> Iterator[Pair]:
        for result in results:
            yield from preference_pairs(result.trajectory)


def _read(text: str, id: str, context: str) -> PieceReading:
    cuts = _DIALECT.cut(text, answered=False)
    pieces = [Piece(c.kind, 0, c.text, c.calls, c.outputs) for c in cuts]
    return PieceReading([text], pieces, id, lambda _, own: "".join(p.text for p in own), context=context)


def _texts(record: Json) -> tuple[str | None, Sequence[str]]:
    place = _place(record)
    if place is None or not isinstance(record, dict):
        return None, ()
    value = record[place]
    return place, value if isinstance(value, list) else [str(value)]


def _place(record: Json) -> str | None:
    """The field whose text, or one of whose texts, has code with an output after it."""
    if not isinstance(record, dict):
        return None
    for name in PLACES:
        value = record.get(name)
        texts = value if isinstance(value, list) else [value]
        if all(isinstance(t, str) for t in texts) and any("```output" in str(t) for t in texts):
            return name
    return None
