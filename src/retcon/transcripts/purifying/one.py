"""Purifying a transcript that is at hand, without files."""

from __future__ import annotations

import msgspec

from retcon.purify.offline import Offline
from retcon.store.types import Record
from retcon.transcripts.purifying.count import Count
from retcon.transcripts.purifying.purifier import Purifier, Sinks
from retcon.transcripts.types import Json


def purify_transcript(transcript: Json, *, format: str = "auto", offline: Offline | None = None) -> tuple[Json, Count]:
    """The transcript (JSON types, in any format that `retcon purify` reads) without the failures that the agent itself
    repaired, and what was counted: `count.shallow + count.deep` turns were repaired, `count.left` says what stays.

    What had nothing to repair comes back as it is. Raises RecordError for what is no transcript, or holds no number of
    JSON's.
    """
    count = Count()
    data = msgspec.json.encode(transcript)
    purifier = Purifier(offline or Offline(), format, Sinks(), count)
    clean = purifier(Record(data, 1, "transcript", "record"))
    return (transcript if clean is None or clean == data else msgspec.json.decode(clean)), count
