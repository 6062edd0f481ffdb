"""Our own trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retcon.core.codec import from_dict, to_dict
from retcon.core.pair import Pair
from retcon.core.types import Trajectory
from retcon.purify.offline import Purified
from retcon.purify.pairs import preference_pairs
from retcon.transcripts.types import Json, Reading


class Ours:
    """Typed statuses, ids kept; a turn that a purifier judged before is left as it is."""

    name = "retcon"

    def matches(self, record: Json) -> bool:
        if not isinstance(record, dict) or not isinstance(record.get("turns"), list):
            return False
        return isinstance(record.get("prompt"), list) and "id" in record and "task" in record

    def clean(self, record: Json) -> int | None:
        if not isinstance(record, dict):
            return None
        count = 0
        for turn in record.get("turns", ()):
            for observation in turn.get("observations", ()) if isinstance(turn, dict) else (None,):
                if not isinstance(observation, dict) or observation.get("status") != "ok":
                    return None
                count += 1
        return count

    def read(self, record: Json, id: str) -> Reading:
        return _OwnReading(from_dict(record))


class _OwnReading:
    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectories: Sequence[Trajectory] = (trajectory,)

    def purified(self, results: Sequence[Purified]) -> Json:
        return to_dict(results[0].trajectory)

    def pairs(self, results: Sequence[Purified]) -> Iterator[Pair]:
        if results[0].splices:
            yield from preference_pairs(results[0].trajectory)
