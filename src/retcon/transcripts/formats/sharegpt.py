"""ShareGPT: `from` and `value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retcon.transcripts.reading.in_messages import InMessages
from retcon.transcripts.registry import register
from retcon.transcripts.types import Certainty, Json


def _shared(items: Sequence[Mapping[str, Json]]) -> bool:
    return all("from" in item and "value" in item for item in items)


register(
    InMessages("sharegpt", "from", "value", Certainty.LAYOUT, _shared, marks=("conversations", "from", "value", "gpt"))
)
