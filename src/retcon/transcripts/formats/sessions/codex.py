"""Sessions of Codex: items of OpenAI's Responses API, one a line, beside what else happened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retcon.transcripts.formats.apis.responses import Responses, words_in
from retcon.transcripts.reading.items import text_of
from retcon.transcripts.reading.itemwise import Item, ItemList, lists, part_of, string
from retcon.transcripts.registry import register
from retcon.transcripts.types import Json

_ITEM, _EVENT, _META, _COMPACTED = "response_item", "event_msg", "session_meta", "compacted"
_SAID = ("message", "text", "last_agent_message")
"""Where events repeat what the model says."""


class Codex(Responses):
    """A line's `payload` is an item where its `type` is `response_item`; by one of `compacted` the model is told what
    stands for all before it, and no repair spans that. All other lines stay with the one before them.
    Events that repeat what a repair has cut are emptied."""

    name = "codex"
    aliases = ()
    needs = frozenset({"payload"})
    marks = ("payload", _ITEM, _EVENT, _META, "turn_context", "timestamp", "function_call", "function_call_output")

    def inside(self, item: Json) -> Item:
        own, kind = part_of(item, "payload"), item.get("type") if isinstance(item, dict) else None
        if kind == _COMPACTED:
            return {"type": "message", "role": "user", "content": own.get("message")}
        return own if kind == _ITEM and own else {"type": ""}

    def with_inside(self, item: Json, inside: Json) -> Json:
        return {**item, "payload": inside} if isinstance(item, dict) else item

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any(self.inside(item).get("role") == "assistant" for item in items)

    def find(self, record: Json) -> ItemList | None:
        for suits in (self.has_calls, self.is_plain):
            for path, items in lists(record):
                if suits(items):
                    return ItemList(path, items, system=_instructions(items))
        return None

    def renewed(self, items: Sequence[Json], before: Sequence[Item]) -> Sequence[Json]:
        cut = {words for item in before if (words := words_in(self.inside(item)).strip())}
        cut -= {words_in(self.inside(item)).strip() for item in items}
        return [_without(item, cut) for item in items]


def _instructions(items: Iterable[Item]) -> str:
    for item in items:
        if item.get("type") == _META:
            meta = part_of(item, "payload")
            return string(part_of(meta, "base_instructions").get("text")) or text_of(meta.get("instructions"))
    return ""


def _without(item: Json, cut: set[str]) -> Json:
    own = part_of(item, "payload")
    if not isinstance(item, dict) or item.get("type") != _EVENT:
        return item
    stale: dict[str, Json] = {key: "" for key in _SAID if string(own.get(key)).strip() in cut}
    return {**item, "payload": {**own, **stale}} if stale else item


register(Codex())
