"""What a purification found and did, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retcon.core.programs import error_line
from retcon.core.types import REPLACED, Trajectory, Turn
from retcon.purify.offline import Purified
from retcon.purify.splice import program

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
    were called; bad_at, unread_at: the numbers of the first. bytes_before, bytes_after: of the records.
    """

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

    def found(self, raw: Trajectory, result: Purified) -> None:
        """Count the calls of one transcript, and what became of them."""
        for turn in raw.turns:
            for observation in turn.observations:
                self.calls += 1
                if observation.status in ("ok", "infrastructure"):
                    continue
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
        """Add another's counts; its lists, of examples and of numbers of its records, are not taken over."""
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
        """What `to_dict` gave."""
        count = cls()
        for name in cls.__slots__:
            if (value := values.get(name)) is None:
                continue  # counted as nothing
            setattr(count, name, Counter(value) if isinstance(value, dict) else value)
        return count


def repair_lines(result: Trajectory) -> Iterator[str]:
    """A line for each turn of a purified trajectory that failed: what goes and what replaces it, or why it stays."""
    place = 0
    for turn in result.turns:
        record, attempts = turn.repair, turn.abandoned or (turn,)
        first = attempts[0]
        failed = next(((c, o) for c, o in zip(first.calls, first.observations, strict=False) if o.status != "ok"), None)
        if record is not None and failed is not None:
            call, seen = failed
            lines = [line.strip() for line in seen.text.splitlines() if line.strip()]
            said = error_line(lines, seen.error_type) or next(iter(lines), seen.status)
            what = f"{result.id}, turn {place}: {call.name} failed ({seen.rule or 'status'}): {said[:100]}"
            if record.decision in REPLACED:
                last = place + len(attempts) - 1
                yield f"{what} -> turn {last}, {record.decision}" + (f" ({record.reason})" if record.reason else "")
            else:
                yield f"{what} -- stays: {record.reason}"
        place += len(attempts)


def total(counts: Sequence[Count]) -> Count:
    """All files together."""
    whole = Count()
    for count in counts:
        whole.add(count)
    return whole


def _example(result: Purified) -> dict[str, object]:
    """The first repair that was made; what ours brings along of earlier ones is none."""
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
