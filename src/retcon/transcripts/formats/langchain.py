"""LangChain's messages, by `messages_to_dict`, `model_dump` or `dumpd`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from retcon.purify.words import cut_spans
from retcon.transcripts.items import APART, Thought, text_of, words_of
from retcon.transcripts.itemwise import (
    Item,
    Itemwise,
    flagged_output,
    objects,
    part_of,
    parts,
    place_calls,
    read_call,
    some_id,
    string,
)
from retcon.transcripts.pieces import Call, Piece, Stretch, ToolOutput, awaits_output, shown_call
from retcon.transcripts.types import Json

_INSIDE = ("data", "kwargs")
_MOVED = ("tool_calls", "invalid_tool_calls")
_KWARGS = "additional_kwargs"
_MOVED_KWARGS = ("tool_calls", "function_call")
"""The calls once more, as the provider has them."""
_REASONING = "reasoning_content"
_THOUGHT = "thought"
"""Of a piece of words: that it is what stands in `additional_kwargs` as reasoning (DeepSeek's)."""
_KINDS = ("human", "ai", "system", "tool", "function", "chat", "developer")
_CALL_BLOCKS = ("tool_use", "server_tool_use", "function_call", "tool_call", "invalid_tool_call")


class LangChain(Itemwise):
    """Messages of LangChain and LangGraph.

    type: human, ai, tool, system. Calls are in `tool_calls`, those with broken arguments in `invalid_tool_calls`; a
    tool's `status` counts where it is "error" ("success" is its default). `reasoning_content` among
    `additional_kwargs` counts as words."""

    name = "langchain"
    aliases = ("langgraph",)
    needs = frozenset({"type"})
    in_lines = True
    marks = ("human", "ai", "tool", "data", "kwargs", "tool_calls", "invalid_tool_calls", "lc", "additional_kwargs")

    def has_calls(self, items: Sequence[Item]) -> bool:
        return any(
            _kind(i) == "ai" and (_inside(i).get("tool_calls") or _inside(i).get("invalid_tool_calls")) for i in items
        )

    def is_plain(self, items: Sequence[Item]) -> bool:
        return all(_kind(item) in _KINDS and "content" in _inside(item) for item in items)

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces: list[Piece] = []
        for owner, item in enumerate(items):
            inside, moved = _inside(item), {"items": [item]}
            kind = _kind(item)
            text = (words_of if kind == "ai" else text_of)(inside.get("content"))
            if kind == "ai" and (thought := string(part_of(inside, _KWARGS).get(_REASONING))):
                pieces.append(Piece("assistant", owner, Thought(thought + APART), payload={**moved, _THOUGHT: True}))
            calls = place_calls(_calls(inside)) if kind == "ai" else ()
            if calls:
                pieces.append(Piece("assistant", owner, text, payload=moved))
                shown = "".join(map(shown_call, calls))
                pieces.append(Piece("call", owner, shown, calls, payload=moved))
            elif kind == "ai":
                pieces.append(Piece("assistant", owner, text, payload=moved))
            elif kind == "tool" and awaits_output(pieces):
                pieces.append(Piece("result", owner, text, outputs=(_output(inside, text),), payload=moved))
            else:
                pieces.append(Piece("context", owner, text, payload=moved))
        return pieces

    def original(self, pieces: Sequence[Piece]) -> list[Json]:
        return parts(pieces[0])

    def rebuild(self, pieces: Sequence[Piece]) -> list[Json]:
        """Return the message of the words, with the calls of the fix."""
        spoken_in = next((piece for piece in pieces if _THOUGHT not in piece.payload), pieces[0])
        home, fix = parts(spoken_in)[0], parts(pieces[-1])[0]
        if not isinstance(home, dict) or not isinstance(fix, dict):
            return [home]
        spoken, made = _inside(home), _inside(fix)
        moved = {key: value for key, value in made.items() if key in _MOVED}
        content = {} if home is fix else {"content": _with_calls(spoken.get("content"), made.get("content"))}
        thought = next((piece.text.removesuffix(APART) for piece in pieces if _THOUGHT in piece.payload), None)
        kwargs = _kwargs(part_of(spoken, _KWARGS), part_of(made, _KWARGS), thought)
        own = {_KWARGS: kwargs} if _KWARGS in spoken or kwargs else {}
        return [_with_inside(home, {**{k: v for k, v in spoken.items() if k not in _MOVED}, **content, **own, **moved})]

    def cut_words(self, piece: Piece, cuts: Sequence[Stretch]) -> Piece:
        if _THOUGHT in piece.payload:  # which `rebuild` takes from the piece
            return replace(piece, text=cut_spans(piece.text, cuts))
        return super().cut_words(piece, cuts)

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        return _with_inside(item, super().without_words(_inside(item), cuts))


def _kwargs(spoken: Item, called: Item, thought: str | None) -> dict[str, Json]:
    """Join the keyword arguments of words, calls and remaining thought."""
    kept = {key: value for key, value in spoken.items() if key not in _MOVED_KWARGS}
    moved = {key: value for key, value in called.items() if key in _MOVED_KWARGS}
    return {**kept, **({} if thought is None else {_REASONING: thought}), **moved}


def _with_calls(spoken: Json, called: Json) -> Json:
    """Join the words of one content and the calls of another."""
    calls = [block for block in called if _is_call(block)] if isinstance(called, list) else []
    if isinstance(spoken, list):
        return [*(block for block in spoken if not _is_call(block)), *calls]
    return [*([{"type": "text", "text": spoken}] if spoken else []), *calls] if calls else spoken


def _is_call(block: Json) -> bool:
    return isinstance(block, dict) and block.get("type") in _CALL_BLOCKS


def _inside(item: Json) -> Item:
    for key in _INSIDE:
        if found := part_of(item, key):
            return found
    return item if isinstance(item, dict) else {}


def _with_inside(item: Json, inside: Json) -> Json:
    under = next((key for key in _INSIDE if part_of(item, key)), None)
    return {**item, under: inside} if under is not None and isinstance(item, dict) else inside


def _kind(item: Item) -> str:
    kind = item.get("type")
    if kind == "constructor":
        kind = _inside(item).get("type")
    return string(kind).removesuffix("MessageChunk").lower()


def _calls(inside: Item) -> list[Call]:
    return [read_call(one, "name", "args", "id") for key in _MOVED for one in objects(inside.get(key))]


def _output(inside: Item, text: str) -> ToolOutput:
    return flagged_output(text, some_id(inside.get("tool_call_id")), failed=inside.get("status") == "error" or None)


FORMAT = LangChain()
