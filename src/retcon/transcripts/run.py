"""Purifying one record after another: the decision, the counts, and what goes into which file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from retcon.core.errors import RecordError
from retcon.core.types import Trajectory
from retcon.purify.offline import Offline
from retcon.store.jsonl import line_of
from retcon.store.pairs import pair_line
from retcon.store.records import Record
from retcon.transcripts.detect import Detector
from retcon.transcripts.report import Count
from retcon.transcripts.types import Format, Json


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where lines of the audit and preference pairs go; None: nowhere."""

    audit: Callable[[bytes], object] | None = None
    pairs: Callable[[bytes], object] | None = None


class Purifier:
    """Purifies the records of one file.

    drop_unrepaired: leave out transcripts in which a failed call stays. Counts go to `count`.
    """

    def __init__(
        self, offline: Offline, format: str, sinks: Sinks, count: Count, *, drop_unrepaired: bool = False
    ) -> None:
        self._offline = offline
        self._detector = Detector(format)
        self._sinks = sinks
        self._drop = drop_unrepaired
        self.count = count

    def __call__(self, record: Record) -> bytes | None:
        """The record to write: its own bytes where nothing changes; None where it is left out.

        Raises RecordError, which begins with where the record stands, for one that is no transcript.
        """
        count = self.count
        value = _decoded(record)
        try:
            # A record with clean calls in the format of the one before needs no further look.
            found = self._detector.last
            clean = found.clean(value) if found is not None else None
            if not clean:
                found = self._detector.format_of(value)
                clean = 0 if found is None else found.clean(value)
            out: bytes | None = record.data
            if found is None:
                count.without_calls += 1
            elif clean is not None:
                count.without_calls += clean == 0
                count.calls += clean
                count.formats[found.name] += 1
            else:
                out = self._read(record, value, found)
                count.formats[found.name] += 1
        except RecordError as error:
            raise error if str(error).startswith(record.where) else RecordError(f"{record.where}: {error}") from error
        count.transcripts += 1
        count.bytes_before += len(record.data)
        if out is None:
            count.dropped += 1
        else:
            count.bytes_after += len(out)
        return out

    def _read(self, record: Record, value: Json, found: Format) -> bytes | None:
        """As a call, of a record that takes a full reading."""
        reading = found.read(value, f"{Path(record.file).name}:{record.number}")
        results = [self._offline(trajectory) for trajectory in reading.trajectories]
        for raw, result in zip(reading.trajectories, results, strict=True):
            self.count.found(raw, result)
        judged = [r for r in results if r.splices or r.left]
        if self._sinks.audit is not None:
            for result in judged:
                self._sinks.audit(
                    line_of(_on_record(result.trajectory, record, found.name, value, bool(result.splices)))
                )
        if not any(r.splices for r in judged):
            keep = not (self._drop and any(t.failures for t in reading.trajectories))
            # Ours keeps why a failure was left alone on its turn.
            same = found.name != "retcon" or not judged
            out = record.data if same else _encoded(reading.purified(results))
            return out if keep else None
        self.count.changed += 1
        if self._sinks.pairs is not None:
            for pair in reading.pairs(results):
                self._sinks.pairs(pair_line(pair))
        if self._drop and any(r.trajectory.failures for r in results):
            return None
        return _encoded(reading.purified(results))


def _on_record(trajectory: Trajectory, record: Record, format: str, value: Json, changed: bool) -> Trajectory:
    """The trajectory with where it is from; and, where that is no longer in the output, its record as it was."""
    about: dict[str, object] = {"source": record.where, "format": format}
    if changed and format != "retcon":
        about["record"] = value
    return replace(trajectory, extra={**trajectory.extra, **about})


def _decoded(record: Record) -> Json:
    try:
        return msgspec.json.decode(record.data)
    except RecursionError:
        raise RecordError(f"{record.where}: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:  # Python's own writer gives NaN and lone surrogates, which no standard knows
            return json.loads(record.data)
        except (ValueError, RecursionError):
            raise RecordError(f"{record.where}: not JSON: {error}") from error


def _encoded(value: Json) -> bytes:
    """As it was decoded: what is beyond the standard is written as Python's own writer does."""
    try:
        data = msgspec.json.encode(value)
        if b"null" not in data or not _has_nan(value):
            return data + b"\n"
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError):
        pass  # a lone surrogate, a whole number of more than 64 bits
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _has_nan(value: Json) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, float) and not math.isfinite(value)
