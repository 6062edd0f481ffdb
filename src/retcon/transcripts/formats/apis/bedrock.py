"""Messages of Bedrock's Converse API, which Strands' agents keep too."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.reading.items import APART, Thought, as_text
from retcon.transcripts.reading.itemwise import Blockwise, Item, called, flagged, objects, part_of, some_id, string
from retcon.transcripts.reading.pieces import Call, PieceKind, ToolOutput
from retcon.transcripts.types import Json

_CALL, _RESULT = "toolUse", "toolResult"
_REASONING, _THOUGHT = "reasoningContent", "reasoningText"


class Bedrock(Blockwise):
    """A block is an object with one key, which says what it is. A `toolResult` of the user answers the call of its
    `toolUseId`; its `status` speaks where it is "error" ("success" is what it has when a tool says nothing). Reasoning
    is words, but for such that is signed."""

    name = "bedrock"
    aliases = ("strands",)
    needs = frozenset({"content"})
    marks = ("messages", "content", _CALL, _RESULT, "toolUseId", _REASONING, _THOUGHT, "cachePoint")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(part_of(block, _CALL) for item in items for block in self.blocks(item))

    def kind(self, block: Json, item: Item) -> PieceKind:
        if part_of(block, _CALL):
            return "call"
        if part_of(block, _RESULT):
            return "output"
        return "said" if item.get("role") == "assistant" else "told"

    def call(self, block: Item) -> Call:
        return called(part_of(block, _CALL), "name", "input", "toolUseId")

    def output(self, block: Item, item: Item) -> ToolOutput:
        result = part_of(block, _RESULT)
        given = objects(result.get("content"))
        text = "".join(
            as_text(one["json"]) if one.get("json") is not None else string(one.get("text")) for one in given
        )
        return flagged(text, some_id(result.get("toolUseId")), failed=result.get("status") == "error" or None)

    def words(self, block: Json) -> str:
        thought = _thought(block)
        if thought:
            text = string(thought.get("text"))
            return Thought(text + APART if text and not thought.get("signature") else "")
        return super().words(block)

    def with_words(self, block: Json, words: str) -> Json:
        thought = _thought(block)
        if not thought:
            return super().with_words(block, words)
        return {_REASONING: {_THOUGHT: {**thought, "text": words.removesuffix(APART)}}}


def _thought(block: Json) -> Item:
    return part_of(part_of(block, _REASONING), _THOUGHT)


FORMAT = Bedrock()
