"""Blocks of text, code and execution as a list of their own (MathCoder's `debug_result`)."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.core.errors import RecordError
from retcon.transcripts.reading.in_messages import ItemsReading
from retcon.transcripts.reading.items import find_items, text_of, with_text
from retcon.transcripts.reading.itemwise import objects
from retcon.transcripts.reading.pieces import Call, Piece, PieceReading, ToolOutput
from retcon.transcripts.reading.roles import speaker_of
from retcon.transcripts.types import Certainty, Format, Json, Reading

Item = dict[str, Json]
_SAID = ("text", "assistant", "thought", "reasoning")  # no set: a role may be anything, where others say `from`


class Blocks(Format):
    name = "mathcoder"
    certainty = Certainty.LAYOUT
    aliases: Sequence[str] = ()
    marks = ("debug_result", "execution", "code", "text")

    def matches(self, record: Json) -> bool:
        return _items(record) is not None

    def read(self, record: Json, id: str) -> Reading:
        found = _items(record)
        if found is None:
            raise RecordError("no list of blocks with the roles text, code and execution")
        path, items = found
        pieces: list[Piece] = []
        for n, item in enumerate(items):
            text = text_of(item.get("content"))
            role = item.get("role")
            if role in _SAID:
                pieces.append(Piece("said", n, text))
            elif role == "code":
                pieces.append(Piece("call", n, text, (Call("python", {"code": text}),)))
            elif role == "execution" and pieces and pieces[-1].kind == "call":
                pieces.append(Piece("output", n, text, (), (ToolOutput(text),)))
            else:
                pieces.append(Piece("told", n, text))
        system = _system(record) if path == ("debug_result",) else ""
        return ItemsReading(record, path, PieceReading(items, pieces, id, _whole, apart=True, system=system))


def _system(record: Json) -> str:
    """What the system says in the messages beside the blocks."""
    found = objects(record.get("messages")) if isinstance(record, dict) else []
    return next((text_of(m.get("content")) for m in found if speaker_of(m) == "system"), "")


def _items(record: Json) -> tuple[Sequence[str], list[Item]] | None:
    """`debug_result` goes before `messages`, which MathCoder's own records have too, without the blocks."""
    if isinstance(record, dict) and isinstance(blocks := record.get("debug_result"), list):
        found = find_items({"debug_result": blocks})
    else:
        found = find_items(record)
    return found if found and any(i.get("role") == "execution" for i in found[1]) else None


def _whole(item: Json, pieces: Sequence[Piece]) -> Json:
    """Blocks are moved whole, and never take parts of each other; their own text may have lost some of it."""
    text = "".join(piece.text for piece in pieces)
    if not isinstance(item, dict) or text_of(item.get("content")) == text:
        return item
    return {**item, "content": with_text(item.get("content"), text)}


FORMAT = Blocks()
