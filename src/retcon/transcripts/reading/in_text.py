"""Whole transcripts as one text, each sample of a question a text of its own (ToRA, dumps of verl and slime)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retcon.core.errors import RecordError
from retcon.core.pair import Pair
from retcon.core.types import Trajectory
from retcon.purify.offline import Purified
from retcon.purify.pairs import preference_pairs
from retcon.transcripts.reading.dialects import Dialect
from retcon.transcripts.reading.items import TEXTS, context_of
from retcon.transcripts.reading.pieces import Piece, PieceReading
from retcon.transcripts.reading.stale import renewed
from retcon.transcripts.types import Certainty, Json, Reading, Speakers


@dataclass(frozen=True, slots=True)
class InText:
    """A format of one text. dialect: how calls and their outputs stand in it. signs: what each such text has."""

    dialect: Dialect
    signs: tuple[str, ...]
    certainty: Certainty
    marks: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.dialect.name

    def matches(self, record: Json) -> bool:
        return self._place(record) is not None

    def clean(self, record: Json) -> int | None:
        count = 0
        for text in self._texts(record)[1]:
            inside = self.dialect.clean_inside(text)
            if inside is None:
                return None
            count += inside
        return count

    def read(self, record: Json, id: str) -> Reading:
        place, texts = self._texts(record)
        if place is None:
            raise RecordError(f"no text with calls and {' and '.join(self.signs)} in any of {', '.join(TEXTS)}")
        context = context_of(record)
        return _TextReading(record, place, [
            _read(self.dialect, text, id if len(texts) == 1 else f"{id}.{n}", context) for n, text in enumerate(texts)
        ])  # fmt: skip

    def _texts(self, record: Json) -> tuple[str | None, Sequence[str]]:
        place = self._place(record)
        if place is None or not isinstance(record, dict):
            return None, ()
        value = record[place]
        return place, value if isinstance(value, list) else [str(value)]

    def _place(self, record: Json) -> str | None:
        """The field whose text, or one of whose texts, has a call with an output after it."""
        if not isinstance(record, dict):
            return None
        for name in TEXTS:
            value = record.get(name)
            texts = value if isinstance(value, list) else [value]
            if all(isinstance(t, str) for t in texts) and any(map(self._signed, texts)):
                return name
        return None

    def _signed(self, text: str) -> bool:
        # A character alone is looked for many times as fast, and most texts have no `<`.
        return all(sign[0] in text and sign in text for sign in self.signs) and self.dialect.used((text,), ())


class _TextReading:
    def __init__(self, record: Json, place: str, readings: Sequence[PieceReading]) -> None:
        self._record = record
        self._place = place
        self._readings = readings
        self.trajectories: Sequence[Trajectory] = [r.trajectory for r in readings]

    @property
    def speakers(self) -> Sequence[Speakers]:
        return [reading.speakers for reading in self._readings]

    def purified(self, results: Sequence[Purified]) -> Json:
        if not isinstance(self._record, dict):
            raise RecordError("a record of text is an object")
        new = [str(reading.items(own)[0]) for reading, own in zip(self._readings, results, strict=True)]
        value: Json = new if isinstance(self._record[self._place], list) else new[0]
        return renewed(self._record, (self._place,), value)

    def pairs(self, results: Sequence[Purified]) -> Iterator[Pair]:
        for result in results:
            yield from preference_pairs(result.trajectory)


def _read(dialect: Dialect, text: str, id: str, context: str) -> PieceReading:
    cuts = dialect.cut(text, answered=False)
    pieces = [Piece(c.kind, 0, c.text, c.calls, c.outputs) for c in cuts]
    return PieceReading([text], pieces, id, lambda _, own: "".join(p.text for p in own), context=context)
