"""The first look at a file: which format it has, and whether what was taken for its records is one transcript."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from retcon.core.errors import RecordError
from retcon.core.texts import counted
from retcon.store.types import Record, Source
from retcon.transcripts.detection.detector import Detector
from retcon.transcripts.detection.hints import nearest_format, tool_use
from retcon.transcripts.reading.itemwise import Itemwise
from retcon.transcripts.reading.style import SESSION, decoded
from retcon.transcripts.registry import formats
from retcon.transcripts.types import Json

RECORDS, BYTES = 512, 4 << 20
"""How much of a file decides its format: of a file no larger than that, every record has the same say."""
_LEAST = 3
"""Records that are looked at whatever their size: of a long prompt alone nobody can tell whether it is one transcript
or the first line of one."""
_TIMES = 8
"""So many times as much where nothing of that is a transcript: a session may begin with images, a request of which has
up to 32 MB, and with what happened before anybody spoke."""


class TornLine(RecordError):
    """The last line of a session breaks off: whoever writes the file is at it, or was killed. number: of the line."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.number = number


class Sampled(NamedTuple):
    """source: with all its records still to come. values: those that were decoded, by the record's number."""

    source: Source
    detector: Detector
    values: dict[int, Json]


def sampled(source: Source, format: str, *, skip_bad: bool = False) -> Sampled:
    """Look at the first records of a file. Raises RecordError where tools were called in them in no known way (with
    `skip_bad` such records are only counted, as they come), and for one transcript that breaks off; but where only the
    last line of a session does, its records are what stands before that, and then comes a TornLine."""
    detector = Detector(format)
    head: list[Record] = []
    values: dict[int, Json] = {}
    for times in (1, _TIMES):
        broken = _read_on(source, head, values, times)
        items = list(values.values())
        in_lines = source.shape == "lines" and (len(items) > 1 or _is_torn(head, values, detector))
        session = detector.session_format(items) if in_lines else None
        is_list = source.shape == "array" and detector.is_list(items)
        if session or is_list or broken or not _is_undecided(source, detector, items):
            break
    if session is not None:
        head, values, broken = _sessions(session, head, source.records, broken, skip_bad=skip_bad)
        source = replace(source, shape="session", records=iter(()))
    elif is_list:
        if broken is not None:
            raise broken
        data = b"".join(r.lead + r.data for r in chain(head, source.records)) + b"".join(source.tail)
        head = [Record(data, 1, head[0].file, "document")]
        values = {1: decoded(head[0])}
        source = replace(source, shape="document", records=iter(()))
    detector.learn(values)
    if not skip_bad:
        _refuse_unknown(source, detector, values)
    return Sampled(replace(source, records=_all(head, source.records, broken)), detector, values)


def _read_on(source: Source, head: list[Record], values: dict[int, Json], times: int) -> RecordError | None:
    """Read the first records, up to so many times as many as decide; what stopped that."""
    size = sum(len(record.data) for record in head)
    try:
        while len(head) < times * RECORDS and (size < times * BYTES or len(head) < _LEAST):
            if (record := next(source.records, None)) is None:
                break
            head.append(record)
            size += len(record.data)
            with suppress(RecordError):  # told when it is its turn
                values[record.number] = decoded(record)
    except RecordError as error:
        return error
    return None


def _is_torn(head: list[Record], values: dict[int, Json], detector: Detector) -> bool:
    """Whether of two lines the last breaks off, and the first alone would be refused."""
    if len(head) != 2 or head[1].data.endswith(b"\n") or list(values) != [head[0].number]:
        return False
    return detector.is_unknown(values[head[0].number])


def _is_undecided(source: Source, detector: Detector, items: list[Json]) -> bool:
    """Whether what follows may tell that these are of one transcript; as they are, one of them would be refused."""
    if source.shape == "lines":
        return detector.may_be_session(items)
    return source.shape == "array" and detector.may_be_list(items)


def _all(head: list[Record], rest: Iterator[Record], broken: RecordError | None) -> Iterator[Record]:
    yield from head
    head.clear()
    if broken is not None:
        raise broken
    yield from rest


def _sessions(
    format: Itemwise, head: list[Record], rest: Iterator[Record], broken: RecordError | None, *, skip_bad: bool
) -> tuple[list[Record], dict[int, Json], RecordError | None]:
    """The sessions of a file, each a record of its lines, by the number of its first; their values; and what ended the
    file before its end."""
    lines = list(head)
    try:
        lines += rest if broken is None else ()
    except RecordError as error:
        broken = error
    if broken is not None and not skip_bad:
        raise broken
    items: list[Json] = []
    for line in lines:
        try:
            items.append(decoded(line))
        except RecordError:
            if line is not lines[-1] or line.data.endswith(b"\n"):
                raise
            broken = TornLine(f"{line.where}: the session's last line breaks off, and is left out", line.number)
    starts = format.beginnings(items)
    records: list[Record] = []
    values: dict[int, Json] = {}
    for start, stop in zip(starts, [*starts[1:], len(items)], strict=True):
        own = lines[start:stop]
        data = b"".join(line.data for line in own)
        records.append(Record(data, own[0].number, own[0].file, SESSION))
        values[own[0].number] = items[start:stop]
    return records, values, broken


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
