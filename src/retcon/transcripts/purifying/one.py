"""Purifying a transcript that is at hand, without files."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from retcon.purify.offline import Offline
from retcon.store.parquet import Record
from retcon.transcripts.purifying.count import Count
from retcon.transcripts.purifying.purifier import Purifier, Sinks
from retcon.transcripts.reading.style import decoded, has_nan
from retcon.transcripts.types import Json


def purify_transcript(
    transcript: Json, *, format: str = "auto", offline: Offline | None = None, failures: Mapping[str, str] | None = None
) -> tuple[Json, Count]:
    """The transcript (JSON types, in any format that `retcon purify` reads) without the failures that the agent itself
    repaired, and what was counted: `count.shallow + count.deep` turns were repaired, `count.left` says what stays.

    failures: by tool, a regular expression that is found in an output of it that failed. What had nothing to repair
    comes back as it is; NaN and lone surrogates stay. Raises RecordError for what is no transcript.
    """
    count = Count()
    purifier = Purifier(offline or Offline(), format, Sinks(), count, failures=failures)
    record = Record(_written(transcript), 1, "transcript", "record")
    clean = purifier(record)
    return (transcript if clean is None or clean == record.data else decoded(record._replace(data=clean))), count


def _written(transcript: Json) -> bytes:
    try:
        data = msgspec.json.encode(transcript)
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(transcript).encode()
    return json.dumps(transcript).encode() if b"null" in data and has_nan(transcript) else data
