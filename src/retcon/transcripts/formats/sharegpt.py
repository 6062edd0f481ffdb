"""ShareGPT: `from` and `value`; and `role` and `text` with calls, as the hub's rows of SWE-agent have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retcon.transcripts.reading.in_messages import InMessages
from retcon.transcripts.reading.items import text_of
from retcon.transcripts.reading.roles import SAID
from retcon.transcripts.registry import dialects, register
from retcon.transcripts.types import Certainty, Json


def _shared(items: Sequence[Mapping[str, Json]]) -> bool:
    if all("from" in item and "value" in item for item in items):
        return True
    if not all("role" in item and "text" in item and item.get("content") is None for item in items):
        return False
    said, told = ([text_of(i["text"]) for i in items if (i["role"] in SAID) is own] for own in (True, False))
    return any(one.used(said, told) for one in dialects())


register(
    InMessages("sharegpt", "from", "value", Certainty.LAYOUT, _shared, marks=("conversations", "from", "value", "gpt"))
)
