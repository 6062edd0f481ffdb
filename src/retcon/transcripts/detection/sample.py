"""The first look at a file: which format it has, and whether what was taken for its records is one transcript."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from retcon.core.errors import RecordError
from retcon.core.texts import counted
from retcon.store.types import Record, Source
from retcon.transcripts.detection.detector import Detector
from retcon.transcripts.detection.hints import nearest_format, tool_use
from retcon.transcripts.reading.style import SESSION, decoded
from retcon.transcripts.registry import formats
from retcon.transcripts.types import Json

RECORDS, BYTES = 512, 4 << 20
"""How much of a file decides its format: of a file no larger than that, every record has the same say."""


class Sampled(NamedTuple):
    """source: with all its records still to come. values: those that were decoded, by the record's number."""

    source: Source
    detector: Detector
    values: dict[int, Json]


def sampled(source: Source, format: str, *, skip_bad: bool = False) -> Sampled:
    """Look at the first records of a file. Raises RecordError where tools were called in them in no known way (with
    `skip_bad` such records are only counted, as they come), and for one transcript that breaks off."""
    head, broken = _head(source)
    values: dict[int, Json] = {}
    for record in head:
        try:
            values[record.number] = decoded(record)
        except RecordError:
            continue  # told when it is its turn
    detector = Detector(format)
    if _is_one(source, detector, list(values.values())):
        if broken is not None:
            raise broken
        source, values = _as_one(source, head), {}
        head = list(source.records)
        values = {1: decoded(head[0])}
    detector.learn(values)
    if not skip_bad:
        _refuse_unknown(source, detector, values)
    return Sampled(replace(source, records=_all(head, source.records, broken)), detector, values)


def _head(source: Source) -> tuple[list[Record], RecordError | None]:
    """The first records, and what stopped them."""
    head: list[Record] = []
    size = 0
    try:
        for record in source.records:
            head.append(record)
            size += len(record.data)
            if len(head) == RECORDS or size >= BYTES:
                break
    except RecordError as error:
        return head, error
    return head, None


def _all(head: list[Record], rest: Iterator[Record], broken: RecordError | None) -> Iterator[Record]:
    yield from head
    head.clear()
    if broken is not None:
        raise broken
    yield from rest


def _is_one(source: Source, detector: Detector, items: list[Json]) -> bool:
    """Whether the items of an array, or the lines of a file, are those of one transcript."""
    if not items:
        return False
    if source.shape == "array":
        return not any(map(detector.matches, items)) and detector.matches(items)
    return source.shape == "lines" and len(items) > 1 and detector.is_session(items)


def _as_one(source: Source, head: list[Record]) -> Source:
    """The file as one record: a transcript that is a list of messages or steps, or a session of lines."""
    records = list(chain(head, source.records))
    if source.shape == "lines":
        session = Record(b"".join(record.data for record in records), 1, head[0].file, SESSION)
        return replace(source, shape="session", records=iter([session]))
    data = b"".join(r.lead + r.data for r in records) + b"".join(source.tail)
    one = Record(data, 1, head[0].file, "document")
    return replace(source, shape="document", records=iter([one]))


def _refuse_unknown(source: Source, detector: Detector, values: dict[int, Json]) -> None:
    """Where no record has a call that can be read, and half of them look as if they had some."""
    if any(detector.has_calls(value) for value in values.values()):
        return
    seen = {number: sign for number, value in values.items() if (sign := tool_use(value)) is not None}
    if not values or 2 * len(seen) < len(values):
        return
    first = min(seen)
    where = ", ".join(map(str, sorted(seen)[:8]))
    raise RecordError(
        f"{source.path}: no call can be read, though {len(seen)} of {counted(len(values), 'record')} looked at show "
        f"signs of tool use ({seen[first]}): {where}{', …' if len(seen) > 8 else ''}; its format is unknown"
        f"{nearest_format(values[first], formats())}"
    )
