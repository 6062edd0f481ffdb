"""Retcon's own trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from retcon.core.codec import from_dict, to_dict
from retcon.core.types import Pair, Trajectory
from retcon.purify.offline import RepairResult
from retcon.purify.pairs import preference_pairs
from retcon.transcripts.types import Certainty, Json, Reading, Speakers


class _Status(msgspec.Struct):
    status: str


class _Turn(msgspec.Struct):
    observations: list[_Status] = []


class _Quick(msgspec.Struct):
    """Part of a record that tells whether anything in it failed."""

    turns: list[_Turn]


class Ours:
    """Retcon's own trajectories; a turn that was judged before stays."""

    name = "retcon"
    certainty = Certainty.LAYOUT
    aliases: Sequence[str] = ()
    marks = ("turns", "segments", "prompt", "task")

    def matches(self, record: Json) -> bool:
        if not isinstance(record, dict) or not isinstance(record.get("turns"), list):
            return False
        return isinstance(record.get("prompt"), list) and "id" in record and "task" in record

    def clean(self, record: Json) -> int | None:
        try:
            read = msgspec.convert(record, _Quick)
        except (msgspec.ValidationError, UnicodeEncodeError):  # a full reading names the field
            return None
        statuses = [o.status for turn in read.turns for o in turn.observations]
        return len(statuses) if set(statuses) <= {"ok"} else None

    def read(self, record: Json, id: str) -> Reading:
        return _OwnReading(from_dict(record))


class _OwnReading:
    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectories: Sequence[Trajectory] = (trajectory,)

    @property
    def speakers(self) -> Sequence[Speakers]:
        """Of its text: a trajectory with ids has the roles in its template."""
        (own,) = self.trajectories
        asked = [[("user", s.text) for s in turn.segments if s.kind == "prompt"] for turn in own.turns]
        return [Speakers([("user", s.text) for s in own.prompt], asked, [True] * len(asked))]

    def with_repairs(self, results: Sequence[RepairResult]) -> Json:
        return to_dict(results[0].trajectory)

    def pairs(self, results: Sequence[RepairResult]) -> Iterator[Pair]:
        """Yield pairs of new splices, not of earlier repairs."""
        result, gone = results[0], 0
        made: set[int] = set()
        for splice in result.splices:
            made.add(splice.failure - gone)
            gone += splice.fix - splice.failure
        turns = [t if n in made else replace(t, repair=None) for n, t in enumerate(result.trajectory.turns)]
        # How many of these turns a branch shares is not known, and its parent may have been left as it was.
        yield from preference_pairs(replace(result.trajectory, turns=tuple(turns), branch=None))


FORMAT = Ours()
