"""Anthropic's messages: `tool_use` and `tool_result` blocks, and the tools that run on the server."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.failures.rules import Verdict
from retcon.transcripts.reading.items import text_of
from retcon.transcripts.reading.itemwise import (
    Blockwise,
    Item,
    called,
    flagged,
    home_of,
    part_of,
    some_id,
    string,
)
from retcon.transcripts.reading.pieces import Call, Piece, PieceKind, ToolOutput
from retcon.transcripts.types import Json

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_RESULT = "tool_result"
_LISTED = "tool_calls"


class Anthropic(Blockwise):
    """content: text, or blocks. A `tool_result` of the user (with some clients, of a tool) answers the call of its
    `tool_use_id`; `is_error` says whether it failed. Results of tools on the server stand in the model's own message,
    with a `return_code`."""

    name = "anthropic"
    marks: Sequence[str] = ("content", "tool_use", "tool_result", "tool_use_id", "input", "is_error")

    def has_calls(self, items: Sequence[Item]) -> bool:
        blocks = [self.blocks(item) for item in items]
        called = any(_is_call(block) for own in blocks for block in own)
        return called and all("role" in item for item in items) and not _is_of_openai(items, blocks)

    def kind(self, block: Json, item: Item) -> PieceKind:
        if _is_call(block):
            return "call"
        if is_result(block):
            return "output"
        return "said" if item.get("role") == "assistant" else "told"

    def call(self, block: Item) -> Call:
        return called(block, "name", "input", "id")

    def output(self, block: Item, item: Item) -> ToolOutput:
        own_id = some_id(block.get("tool_use_id"))
        ran = part_of(block, "content")
        if ran:  # of a tool on the server
            text = string(ran.get("stdout")) + string(ran.get("stderr")) or string(ran.get("error_code"))
            code = ran.get("return_code")
            if type(code) is int:
                return ToolOutput(
                    text, own_id, Verdict("error", "status", f"exit {code}") if code else None, typed=True
                )
            failed = string(ran.get("type")).endswith("_error")
            return ToolOutput(text, own_id, Verdict("error", "status", text or None) if failed else None, typed=failed)
        says = block.get("is_error")
        return flagged(text_of(block.get("content")), own_id, failed=says if isinstance(says, bool) else None)

    def rebuilt(self, pieces: Sequence[Piece]) -> list[Json]:
        new = super().rebuilt(pieces)
        listed = [call for piece in pieces if piece.kind == "call" for call in _listed(piece)]
        return [{**one, _LISTED: listed} if isinstance(one, dict) and one.get(_LISTED) else one for one in new]


def is_result(block: Json) -> bool:
    """Whether a block is what a call gave, be it a tool of the user's or one on the server."""
    return isinstance(block, dict) and string(block.get("type")).endswith(_RESULT)


def _is_call(block: Json) -> bool:
    """Whether a block is a call; one of inspect_ai's, of a provider's own tool, has the same type and a `tool_type`."""
    return isinstance(block, dict) and block.get("type") in _CALLS and "tool_type" not in block


def _is_of_openai(items: Sequence[Item], blocks: Sequence[Sequence[Json]]) -> bool:
    """Whether a message has OpenAI's shape: a tool's without a result block, or calls in `tool_calls` (where some
    clients have them too) that no result block answers. blocks: those of each."""
    answers = [any(map(_is_result, own)) for own in blocks]
    if any(item["role"] == "tool" and not answer for item, answer in zip(items, answers, strict=True)):
        return True
    return not any(answers) and any(item.get(_LISTED) for item in items)


def _is_result(block: Json) -> bool:
    return isinstance(block, dict) and block.get("type") == _RESULT


def _listed(piece: Piece) -> list[Json]:
    """What the message of a piece of calls has of them in `tool_calls` too."""
    listed, ids = home_of([piece]).get(_LISTED), {call.id for call in piece.calls}
    calls = listed if isinstance(listed, list) else []
    return [call for call in calls if isinstance(call, dict) and some_id(call.get("id")) in ids]


FORMAT = Anthropic()
