"""Purifying on several cores: records are read ahead and purified by other processes, in batches, and taken in order.

What is written, counted and refused is what one process would, record by record: so that a run stops, and is gone on
with, after any record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from retcon.core.errors import RecordError
from retcon.purify.offline import Offline
from retcon.store.records import Record
from retcon.transcripts.detection.detector import Detector
from retcon.transcripts.purifying.count import Count
from retcon.transcripts.purifying.processes import Processes, ProcessKilled
from retcon.transcripts.purifying.purifier import Purifier, Sinks

_RECORDS, _BYTES = 64, 1 << 20
"""A batch is so many records or bytes: enough to be worth its way, little enough to be held a few times over."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a process needs to know of a file: the arguments of its `Purifier`. decided: see `Detector`, which itself
    holds what cannot be sent."""

    offline: Offline
    format: str
    decided: int | None
    drop_unrepaired: bool
    name: str
    audit: bool
    pairs: bool
    failures: Mapping[str, str]


class _Done(NamedTuple):
    """One record's. data: what is written, None where it is left out; same: it is the record as it was."""

    data: bytes | None
    same: bool
    error: str | None
    audit: list[bytes]
    pairs: list[bytes]
    counted: dict[str, object]


Pool: TypeAlias = Processes[[Work, list[Record]], list[_Done]]


def pool(jobs: int) -> Pool:
    """Processes to purify with; one pool for all files of a run."""
    return Processes(jobs, _purified)


class RecordsLost(RecordError):
    """A process was killed, with the records that it had; they may all be in order."""


class Ahead:
    """The records of a file, purified by other processes before they are asked for.

    Iterating gives the records; called with the one that was given last it does what a `Purifier` does: gives what to
    write, and puts audit lines, pairs and counts where they go. The first `skip` records are given and not purified.
    """

    def __init__(self, pool: Pool, records: Iterator[Record], work: Work, sinks: Sinks, count: Count, *, skip: int):
        self._records = records
        self._work = work
        self._sinks = sinks
        self._skip = skip
        self._done: _Done | None = None
        self._pool = pool
        self.count = count

    def __iter__(self) -> Iterator[Record]:
        for _, record in zip(range(self._skip), self._records, strict=False):
            yield record
        batches = self._batches()
        waiting: deque[tuple[list[Record], RecordError | None, Future[list[_Done]]]] = deque()
        more = True
        while more or waiting:
            while more and len(waiting) < 2 * self._pool.number:
                batch = next(batches, None)
                more = batch is not None and batch[1] is None
                if batch is not None:
                    waiting.append((*batch, self._pool.submit(self._work, batch[0])))
            if not waiting:
                return
            records, broken, future = waiting.popleft()
            try:
                done = future.result()
            except ProcessKilled:
                raise RecordsLost(
                    f"{records[0].where}: a process that purified this record or one of the {len(records)} from there "
                    f"was killed, most often for its memory; fewer --jobs need less"
                ) from None
            for record, self._done in zip(records, done, strict=False):
                yield record
            if broken is not None:
                raise broken

    def __call__(self, record: Record) -> bytes | None:
        """What to write for the record that was given last. Raises RecordError as a `Purifier` does."""
        done = self._done
        if done is None:
            raise ValueError(f"{record.where} was not purified")
        self._done = None
        if self._sinks.audit is not None:
            for line in done.audit:
                self._sinks.audit(line)
        if self._sinks.pairs is not None:
            for line in done.pairs:
                self._sinks.pairs(line)
        self.count.take(Count.from_dict(done.counted))
        if done.error is not None:
            raise RecordError(done.error)
        return record.data if done.same else done.data

    def _batches(self) -> Iterator[tuple[list[Record], RecordError | None]]:
        """Batches of records; the last one with the error that ended the file, if one did."""
        batch: list[Record] = []
        size = 0
        try:
            for record in self._records:
                batch.append(record)
                size += len(record.data)
                if len(batch) == _RECORDS or size >= _BYTES:
                    yield batch, None
                    batch, size = [], 0
        except RecordError as error:
            yield batch, error
            return
        if batch:
            yield batch, None


def _purified(work: Work, records: list[Record]) -> list[_Done]:
    """In another process: each record's outcome."""
    audit: list[bytes] = []
    pairs: list[bytes] = []
    sinks = Sinks(audit.append if work.audit else None, pairs.append if work.pairs else None)
    detector = Detector(work.format, work.decided)
    drop = work.drop_unrepaired
    purifier = Purifier(
        work.offline, detector, sinks, Count(), drop_unrepaired=drop, name=work.name, failures=work.failures
    )
    out: list[_Done] = []
    for record in records:
        purifier.count = Count()
        data, error = None, None
        try:
            data = purifier(record)
        except RecordError as wrong:
            error = str(wrong)
        same = data is record.data
        count = {name: value for name, value in purifier.count.to_dict().items() if value}
        out.append(_Done(None if same else data, same, error, audit.copy(), pairs.copy(), count))
        audit.clear()
        pairs.clear()
    return out
