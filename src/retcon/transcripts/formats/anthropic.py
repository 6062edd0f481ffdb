"""Anthropic's messages: `tool_use` and `tool_result` blocks, and the tools that run on the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

from retcon.purify.reading.words import without
from retcon.transcripts.failures.rules import Verdict
from retcon.transcripts.reading.calls import shown_call
from retcon.transcripts.reading.items import text_of, without_words, words_of
from retcon.transcripts.reading.itemwise import Item, Itemwise, arguments_of, part_of, parts, placed, some_id, string
from retcon.transcripts.reading.pieces import Call, Piece, PieceKind, Stretch, ToolOutput
from retcon.transcripts.registry import register
from retcon.transcripts.types import Json

_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_RESULT = "tool_result"
_LISTED = "tool_calls"


class Anthropic(Itemwise):
    """content: text, or blocks. A `tool_result` of the user (with some clients, of a tool) answers the call of its
    `tool_use_id`; `is_error` says that it failed. Results of tools on the server stand in the model's own message, with
    a `return_code`."""

    name = "anthropic"
    marks = ("content", "tool_use", "tool_result", "tool_use_id", "input", "is_error")

    def has_calls(self, items: Sequence[Item]) -> bool:
        of_blocks = [item for item in items if not isinstance(item.get("content"), str)]
        blocks = (block for item in of_blocks for block in _blocks(item))
        return any(map(_is_call, blocks)) and all("role" in item for item in items) and not _is_of_openai(items)

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces: list[Piece] = []
        for owner, item in enumerate(items):
            for kind, blocks in _runs(item):
                calls = placed([_call(b) for b in blocks]) if kind == "call" else ()
                outputs = tuple(map(_output, blocks)) if kind == "output" else ()
                shown = "".join(map(shown_call, calls)) or "".join(o.text for o in outputs) or words_of(blocks)
                pieces.append(Piece(kind, owner, shown, calls, outputs, {"items": blocks, "home": item}))
        return pieces

    def original(self, pieces: Sequence[Piece]) -> list[Json]:
        return [_home(pieces)]

    def rebuilt(self, pieces: Sequence[Piece]) -> list[Json]:
        blocks = [block for piece in pieces for block in parts(piece)]
        home = _home(pieces)
        new = {**home, "content": blocks if isinstance(home.get("content"), list) else blocks[0]}
        if home.get(_LISTED):
            new[_LISTED] = [call for piece in pieces if piece.kind == "call" for call in _listed(piece)]
        return [new]

    def reworded(self, piece: Piece, cuts: Sequence[Stretch]) -> Piece:
        blocks = without_words(parts(piece), cuts)
        return replace(piece, text=without(piece.text, cuts), payload={**piece.payload, "items": blocks})


def _home(pieces: Sequence[Piece]) -> dict[str, Json]:
    """The message that a piece's blocks are of."""
    return cast(dict[str, Json], pieces[0].payload["home"])


def _blocks(item: Item) -> Sequence[Json]:
    content = item.get("content")
    return content if isinstance(content, list) and content else [content]


def _is_call(block: Json) -> bool:
    """Whether a block is a call; one of inspect_ai's, of a provider's own tool, has the same type and a `tool_type`."""
    return isinstance(block, dict) and block.get("type") in _CALLS and "tool_type" not in block


def _is_of_openai(items: Sequence[Item]) -> bool:
    """Whether a message has OpenAI's shape: a tool's without a result block, or calls in `tool_calls` (where some
    clients have them too) that no result block answers."""
    answers = [any(map(_is_result, _blocks(item))) for item in items]
    if any(item["role"] == "tool" and not answer for item, answer in zip(items, answers, strict=True)):
        return True
    return not any(answers) and any(item.get(_LISTED) for item in items)


def _is_result(block: Json) -> bool:
    return isinstance(block, dict) and block.get("type") == _RESULT


def _listed(piece: Piece) -> list[Json]:
    """What the message of a piece of calls has of them in `tool_calls` too."""
    listed, ids = _home([piece]).get(_LISTED), {call.id for call in piece.calls}
    calls = listed if isinstance(listed, list) else []
    return [call for call in calls if isinstance(call, dict) and some_id(call.get("id")) in ids]


def _runs(item: Item) -> Iterator[tuple[PieceKind, list[Json]]]:
    """Blocks of one kind that follow each other: all words are one piece, and so are calls in a row."""
    rest: PieceKind = "said" if item.get("role") == "assistant" else "told"
    for kind, run in groupby(_blocks(item), key=lambda block: _kind(block, rest)):
        yield kind, list(run)


def _kind(block: Json, rest: PieceKind) -> PieceKind:
    if _is_call(block):
        return "call"
    kind = block.get("type") if isinstance(block, dict) else None
    return "output" if isinstance(kind, str) and kind.endswith(_RESULT) else rest


def _call(block: Json) -> Call:
    call = block if isinstance(block, dict) else {}
    return Call(string(call.get("name"), "python"), arguments_of(call.get("input")), id=some_id(call.get("id")))


def _output(block: Json) -> ToolOutput:
    result = block if isinstance(block, dict) else {}
    own_id = some_id(result.get("tool_use_id"))
    ran = part_of(result, "content")
    if ran:  # of a tool on the server
        text = string(ran.get("stdout")) + string(ran.get("stderr")) or string(ran.get("error_code"))
        code = ran.get("return_code")
        if type(code) is int:
            return ToolOutput(text, own_id, Verdict("error", "status", f"exit {code}") if code else None, typed=True)
        failed = string(ran.get("type")).endswith("_error")
        return ToolOutput(text, own_id, Verdict("error", "status", text or None) if failed else None, typed=failed)
    failed = result.get("is_error") is True
    return ToolOutput(
        text_of(result.get("content")), own_id, Verdict("error", "status") if failed else None, typed=failed
    )


register(Anthropic())
