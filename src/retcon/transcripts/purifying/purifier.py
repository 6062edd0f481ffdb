"""Purifying one record after another: the decision, the counts, and what goes into which file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError, located
from retcon.core.types import Origin, Pair, Trajectory, Written
from retcon.purify.offline import Offline
from retcon.store.jsonl import line_of, pair_line
from retcon.store.records import Record
from retcon.transcripts.detection.detector import Detector, tool_use
from retcon.transcripts.failures.rules import with_named_failures
from retcon.transcripts.purifying.count import SHOWN, Count
from retcon.transcripts.reading.style import decoded_with_standard, encoded, has_nan, is_finite, without_nan
from retcon.transcripts.types import Format, Json


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where lines of the audit and preference pairs go; None: nowhere."""

    audit: Callable[[bytes], object] | None = None
    pairs: Callable[[bytes], object] | None = None


class Purifier:
    """Purifies the records of one file.

    format: its name, or what has found it. drop_unrepaired: leave out transcripts in which a failed call stays. Counts
    go to `count`. values: of records that were decoded before, by their numbers; taken out as they are used. name: of
    the file, in the trajectories' ids, which tell the files of one audit apart. failures: see `Assignment`.
    """

    def __init__(
        self, offline: Offline, format: str | Detector, sinks: Sinks, count: Count, *, drop_unrepaired: bool = False,
        values: dict[int, Json] | None = None, name: str | None = None, failures: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._offline = offline
        self._detector = Detector(format) if isinstance(format, str) else format
        self._values = {} if values is None else values
        self._sinks = sinks
        self._drop = drop_unrepaired
        self._name = name
        self._failures = {tool: re.compile(form) for tool, form in (failures or {}).items()}
        self.count = count

    def __call__(self, record: Record) -> bytes | None:
        """The record to write: its own bytes where nothing changes; None where it is left out.

        Raises RecordError, which begins with where the record stands, for one that is no transcript.
        """
        count = self.count
        if record.number in self._values:
            value, standard = self._values.pop(record.number), False
        else:
            value, standard = decoded_with_standard(record)
        try:
            # A record with clean calls in the format of its file needs no further look.
            found = main = self._detector.main
            clean = main.clean(value) if main is not None and not self._failures else None
            if not clean:
                found = self._detector.format_of(value)
                if found is None or (found is not main and not self._failures):
                    clean = 0 if found is None else found.clean(value)
            out: bytes | None = record.data
            if found is not None:
                count.formats[found.name] += 1
            if clean is None and found is not None:
                out = self._read(record, value, found, standard)
            else:
                count.calls += clean or 0
                self._no_calls(record, value, clean or 0)
        except RecordError as error:
            raise located(error, record.where) from error
        except RecursionError:
            raise RecordError(f"{record.where}: nested too deeply") from None
        count.transcripts += 1
        count.bytes_before += len(record.data)
        if out is None:
            count.dropped += 1
        else:
            count.bytes_after += len(out)
        return out

    def _no_calls(self, record: Record, value: Json, calls: int) -> None:
        """Note a transcript without calls; and, where it looks as if there were some, that they cannot be read."""
        if calls:
            return
        self.count.without_calls += 1
        if (seen := tool_use(value)) is not None:
            self.count.unread += 1
            self.count.unread_as[seen] += 1
            if len(self.count.unread_at) < SHOWN:
                self.count.unread_at.append(record.number)

    def _read(self, record: Record, value: Json, found: Format, standard: bool) -> bytes | None:
        """The record to write, of one that takes a full reading. standard: whether it is known to be standard JSON."""
        reading = found.read(value, f"{self._name or Path(record.file).name}:{record.number}")
        self._no_calls(record, value, sum(len(turn.observations) for t in reading.trajectories for turn in t.turns))
        raws = [with_named_failures(trajectory, self._failures) for trajectory in reading.trajectories]
        results = [self._offline(trajectory) for trajectory in raws]
        for raw, result in zip(raws, results, strict=True):
            self.count.found(raw, result)
        judged = [r for r in results if r.splices or r.left]
        standard = standard or not judged or is_finite(record.data) or not has_nan(value)
        if self._sinks.audit is not None:
            for result in judged:
                whole = (value if standard else record.data.decode("utf-8", "replace")) if result.splices else None
                self._sinks.audit(_audit_line(result.trajectory, record.where, found.name, whole, standard))
        if not any(r.splices for r in judged):
            keep = not (self._drop and any(t.failures for t in raws))
            # Ours keeps why a failure was left alone on its turn.
            same = found.name != "retcon" or not judged
            out = record.data if same else encoded(reading.purified(results), record)
            return out if keep else None
        self.count.changed += 1
        if self._sinks.pairs is not None:
            for pair in reading.pairs(results):
                self._sinks.pairs(pair_line(pair if standard else _standard_pair(pair)))
        if self._drop and any(r.trajectory.failures for r in results):
            return None
        return encoded(reading.purified(results), record)


def _audit_line(trajectory: Trajectory, where: str, format: str, record: Json, standard: bool) -> bytes:
    """The trajectory with where it is from; and, where that is no longer in the output, its record as it was: as text
    where it is beyond standard JSON, which an audit is."""
    trajectory = replace(trajectory, origin=Origin(where, format, None if format == "retcon" else record))
    return line_of(trajectory if standard else from_dict(without_nan(to_dict(trajectory))))


def _standard_pair(pair: Pair) -> Pair:
    """The pair without NaN, which the readers of pairs do not know."""

    def plain(written: Written) -> Written:
        return written if isinstance(written, str) else without_nan(tuple(written))

    chosen, rejected = (replace(c, written=plain(c.written)) for c in (pair.chosen, pair.rejected))
    return replace(pair, prompt=plain(pair.prompt), chosen=chosen, rejected=rejected)
