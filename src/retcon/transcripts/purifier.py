"""Purify single records, and count failures and repairs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as renewed
from pathlib import Path

import msgspec
from msgspec.structs import replace

from retcon.core.codec import from_dict, to_dict
from retcon.core.errors import RecordError, as_record_error
from retcon.core.texts import error_line
from retcon.core.types import REPLACED, Origin, Pair, Trajectory, Turn, Written
from retcon.purify.offline import Repairer, RepairResult
from retcon.purify.splice import program
from retcon.store.jsonl import line_of, pair_line
from retcon.store.records import Record
from retcon.transcripts.detector import Detector, tool_use
from retcon.transcripts.items import decode, decode_with_standard, encode, has_nan, is_finite, without_nan
from retcon.transcripts.types import Format, Json
from retcon.transcripts.verdicts import with_named_failures

EXAMPLES = 3
SHOWN = 20
"""How many places are listed of what is wrong."""
_SHOWN = 600


@dataclass(slots=True)
class Count:
    """Counts of one file, or of all.

    transcripts: those that were read; without_calls: those of them that no tool was called in. calls: those that have
    an output; failed: those of them that failed. rules, types: failed calls by the rule that saw it and by exception.
    shallow, deep: turns repaired; attempts_removed: failed turns taken out. left: failed turns that stay, by reason.
    cut: sentences and comments that spoke of what was taken out, by rule. dropped: transcripts left out. bad: records
    that could not be read; unread: transcripts without a call, though something in them (unread_as) says that tools
    were called; bad_at, unread_at: the numbers of the first. bytes_before, bytes_after: of the records."""

    formats: Counter[str] = field(default_factory=Counter)
    transcripts: int = 0
    without_calls: int = 0
    calls: int = 0
    failed: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    types: Counter[str] = field(default_factory=Counter)
    shallow: int = 0
    deep: int = 0
    attempts_removed: int = 0
    left: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    dropped: int = 0
    bad: int = 0
    bad_at: list[int] = field(default_factory=list)
    unread: int = 0
    unread_as: Counter[str] = field(default_factory=Counter)
    unread_at: list[int] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0
    examples: list[dict[str, object]] = field(default_factory=list)

    def found(self, raw: Trajectory, result: RepairResult) -> None:
        """Count the calls of one transcript, and what became of them."""
        seen = [observation for turn in raw.turns for observation in turn.observations]
        self.calls += len(seen)
        for observation in seen:
            if observation.status not in ("ok", "infrastructure"):
                self.failed += 1
                self.rules[observation.rule or "status"] += 1
                self.types[observation.error_type or observation.status] += 1
        for splice in result.splices:
            self.shallow += splice.shallow
            self.deep += not splice.shallow
            self.attempts_removed += splice.fix - splice.failure
        for left in result.left:
            self.left[left.reason] += 1
        self.cut.update(cut.rule for cut in result.cuts)
        if result.splices and len(self.examples) < EXAMPLES:
            self.examples.append(_example(result))

    def add(self, other: Count) -> None:
        """Add another's counts, but not its lists."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, int):
                setattr(self, name, mine + theirs)

    def take(self, other: Count) -> None:
        """Add what another counted of records of this file that come next: its lists too, as long as they are short."""
        self.add(other)
        for name, most in (("examples", EXAMPLES), ("bad_at", SHOWN), ("unread_at", SHOWN)):
            mine = getattr(self, name)
            mine += getattr(other, name)[: max(0, most - len(mine))]

    def to_dict(self) -> dict[str, object]:
        """JSON types; counters as objects, most first."""
        out: dict[str, object] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            out[name] = dict(value.most_common()) if isinstance(value, Counter) else value
        return out

    @classmethod
    def from_dict(cls, values: dict[str, object]) -> Count:
        """Read the result of `to_dict`."""
        count = cls()
        for name in cls.__slots__:
            if (value := values.get(name)) is None:
                continue  # counted as nothing
            setattr(count, name, Counter(value) if isinstance(value, dict) else value)
        return count


def repair_lines(result: Trajectory) -> Iterator[str]:
    """Yield a line for each failed turn: its replacement, or why it stays."""
    place = 0
    for turn in result.turns:
        record, attempts = turn.repair, turn.abandoned or (turn,)
        first = attempts[0]
        failed = next(((c, o) for c, o in zip(first.calls, first.observations, strict=False) if o.status != "ok"), None)
        if record is not None and failed is not None:
            call, seen = failed
            lines = [line.strip() for line in seen.text.splitlines() if line.strip()]
            why = error_line(lines, seen.error_type) or next(iter(lines), seen.status)
            what = f"{result.id}, turn {place}: {call.name} failed ({seen.rule or 'status'}): {why[:100]}"
            if record.decision in REPLACED:
                last = place + len(attempts) - 1
                yield f"{what} -> turn {last}, {record.decision}" + (f" ({record.reason})" if record.reason else "")
            else:
                yield f"{what} -- stays: {record.reason}"
        place += len(attempts)


def total(counts: Sequence[Count]) -> Count:
    """Add up the counts of all files."""
    whole = Count()
    for count in counts:
        whole.add(count)
    return whole


def _example(result: RepairResult) -> dict[str, object]:
    """Describe the first repair that was made in this run."""
    turn = result.trajectory.turns[result.splices[0].failure]
    repair = turn.repair
    return {
        "id": result.trajectory.id,
        "decision": repair and repair.decision,
        "similarity": repair and repair.similarity,
        "failed": _cut(turn.abandoned[0]),
        "error": next((o.error_type or o.status for o in turn.abandoned[0].observations if o.status != "ok"), None),
        "fix": _cut(turn),
    }


def _cut(turn: Turn) -> str:
    text = program(turn.calls)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


@dataclass(frozen=True, slots=True)
class Sinks:
    """Receivers of audit lines and preference pairs; None drops them."""

    audit: Callable[[bytes], object] | None = None
    pairs: Callable[[bytes], object] | None = None


class RecordRepairer:
    """Purifies the records of one file.

    format: its name, or what has found it. drop_unrepaired: leave out transcripts in which a failed call stays. Counts
    go to `count`. values: of records that were decoded before, by their numbers; taken out as they are used. name: of
    the file, in the trajectories' ids, which tell the files of one audit apart. failures: as in `Assignment`."""

    def __init__(
        self, offline: Repairer, format: str | Detector, sinks: Sinks, count: Count, *, drop_unrepaired: bool = False,
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
        """Return the record to write: its own bytes where nothing changes; None where it is left out.

        Raises RecordError, which begins with where the record stands, for one that is no transcript."""
        count = self.count
        if record.number in self._values:
            value, standard = self._values.pop(record.number), False
        else:
            value, standard = decode_with_standard(record)
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
            elif clean:
                count.calls += clean
            else:
                self._no_calls(record, value, 0)
        except RecordError as error:
            raise as_record_error(error, record.where) from error
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
        """Count a transcript without calls, and unreadable signs of calls."""
        if calls:
            return
        self.count.without_calls += 1
        if (seen := tool_use(value)) is not None:
            self.count.unread += 1
            self.count.unread_as[seen] += 1
            if len(self.count.unread_at) < SHOWN:
                self.count.unread_at.append(record.number)

    def _read(self, record: Record, value: Json, found: Format, standard: bool) -> bytes | None:
        """Read a record in full, and return what to write. standard: whether it is known to be standard JSON."""
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
            out = record.data if same else encode(reading.with_repairs(results), record)
            return out if keep else None
        self.count.changed += 1
        if self._sinks.pairs is not None:
            for pair in reading.pairs(results):
                self._sinks.pairs(pair_line(pair if standard else _standard_pair(pair)))
        if self._drop and any(r.trajectory.failures for r in results):
            return None
        return encode(reading.with_repairs(results), record)


def _audit_line(trajectory: Trajectory, where: str, format: str, record: Json, standard: bool) -> bytes:
    """Return the audit line of a trajectory.

    It names its source; a record that is no longer in the output is added, as text where it is beyond standard
    JSON."""
    trajectory = replace(trajectory, origin=Origin(where, format, None if format == "retcon" else record))
    return line_of(trajectory if standard else from_dict(without_nan(to_dict(trajectory))))


def _standard_pair(pair: Pair) -> Pair:
    """Return the pair without NaN, which readers of pairs do not know."""

    def plain(written: Written) -> Written:
        return written if isinstance(written, str) else without_nan(tuple(written))

    chosen, rejected = (renewed(c, written=plain(c.written)) for c in (pair.chosen, pair.rejected))
    return renewed(pair, prompt=plain(pair.prompt), chosen=chosen, rejected=rejected)


def purify_transcript(
    transcript: Json, *, format: str = "auto", offline: Repairer | None = None,
    failures: Mapping[str, str] | None = None,
) -> tuple[Json, Count]:  # fmt: skip
    """Purify one transcript, and count what was found.

    transcript: JSON types, in any format that `retcon purify` reads. `count.shallow + count.deep` turns were
    repaired, `count.left` gives the reasons of those that stay. failures: by tool, a regular expression that
    matches its failed outputs. What had nothing to repair comes back as it is; NaN and lone surrogates stay. Raises
    RecordError for anything but a transcript."""
    count = Count()
    purifier = RecordRepairer(offline or Repairer(), format, Sinks(), count, failures=failures)
    record = Record(_written(transcript), 1, "transcript", "record")
    clean = purifier(record)
    return (transcript if clean is None or clean == record.data else decode(record._replace(data=clean))), count


def _written(transcript: Json) -> bytes:
    try:
        data = msgspec.json.encode(transcript)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(transcript).encode()
    return json.dumps(transcript).encode() if b"null" in data and has_nan(transcript) else data
