"""Sessions of Codex: items of OpenAI's Responses API, one a line, beside what else happened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from retcon.transcripts.formats.apis.responses import Responses, words_in
from retcon.transcripts.reading.items import text_of
from retcon.transcripts.reading.itemwise import Item, ItemList, lists, part_of, string
from retcon.transcripts.types import Json

_ITEM, _EVENT, _META, _COMPACTED = "response_item", "event_msg", "session_meta", "compacted"
_SAID = ("message", "text", "last_agent_message")
"""Where events repeat what the model says."""
_TAKEN_BACK = "thread_rolled_back"
_CONTEXT = re.compile(r"\s*(?:# AGENTS\.md instructions\b.*|<([\w-]+)>.*</\1>\s*)", re.DOTALL)
"""What Codex itself says in the user's name."""


class Codex(Responses):
    """A line's `payload` is an item where its `type` is `response_item`; by one of `compacted` the model is told what
    stands for all before it, and no repair spans that. All other lines stay with the one before them.
    Events that repeat what a repair has cut are emptied. Turns that the user took back are no part of what went on:
    their lines stay as they are."""

    name = "codex"
    aliases = ()
    needs = frozenset({"payload"})
    marks = ("payload", _ITEM, _EVENT, _META, "turn_context", "timestamp", "function_call", "function_call_output")

    def inside(self, item: Json) -> Item:
        own, kind = part_of(item, "payload"), item.get("type") if isinstance(item, dict) else None
        if kind == _COMPACTED:
            return {"type": "message", "role": "user", "content": own.get("message")}
        return own if kind == _ITEM and own else {"type": ""}

    def all_inside(self, items: Sequence[Item]) -> list[Item]:
        inner = super().all_inside(items)
        for n in _taken_back(items, inner):
            inner[n] = {"type": ""}
        return inner

    def with_inside(self, item: Json, inside: Json) -> Json:
        return {**item, "payload": inside} if isinstance(item, dict) else item

    def is_plain(self, items: Sequence[Item]) -> bool:
        return any("role" in self.inside(item) for item in items)

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


def _taken_back(items: Sequence[Item], inner: Sequence[Item]) -> set[int]:
    """Places of lines that a rollback took out of the conversation: of the last so many turns, each of which begins
    with what the user said."""
    begun: list[int] = []
    taken: set[int] = set()
    for n, (item, one) in enumerate(zip(items, inner, strict=True)):
        event = part_of(item, "payload")
        turns = event.get("num_turns") if item.get("type") == _EVENT and event.get("type") == _TAKEN_BACK else None
        if item.get("type") == _ITEM and _is_asked(one):
            begun.append(n)
        elif type(turns) is int and turns > 0 and begun:
            taken.update(range(begun[-min(turns, len(begun))], n))
            del begun[-turns:]
    return taken


def _is_asked(item: Item) -> bool:
    """Whether the user said it, not Codex."""
    content = item.get("content")
    parts = content if isinstance(content, list) else [content]
    return item.get("role") == "user" and not any(_CONTEXT.fullmatch(text_of([part])) for part in parts)


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


FORMAT = Codex()
