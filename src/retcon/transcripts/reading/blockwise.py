"""Formats whose messages are lists of typed blocks: words, calls and what these gave, each a block of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import cast

from retcon.purify.reading.words import without
from retcon.transcripts.reading.calls import shown_call
from retcon.transcripts.reading.items import part_words, parts_without, with_part_words
from retcon.transcripts.reading.itemwise import Item, Itemwise, parts, placed
from retcon.transcripts.reading.pieces import Call, Piece, PieceKind, Stretch, ToolOutput
from retcon.transcripts.types import Json

_HOME = "home"
_BESIDE = "beside"


class Blockwise(Itemwise):
    """A format of messages of blocks; a subclass says where these are and what each is. Blocks of one kind that follow
    each other in a message are one piece: all words, calls in a row. A message without blocks (a change of state) is
    nobody's word and stays with the one before it."""

    def blocks(self, item: Item) -> Sequence[Json]:
        """The blocks of a message, one that is text for a block; none where it has no place for any."""
        content = item.get("content")
        return content if isinstance(content, list) and content else [content]

    def blocks_of(self, items: Sequence[Item]) -> Sequence[Sequence[Json]]:
        """The blocks of each message."""
        return [self.blocks(item) for item in items]

    def goes_on(self, item: Item, last: Item) -> bool:
        """Whether an item is of the same message as the one before it."""
        return False

    def with_blocks(self, item: Item, blocks: Sequence[Json]) -> dict[str, Json]:
        """The message with other blocks."""
        return {**item, "content": list(blocks) if isinstance(item.get("content"), list) else blocks[0]}

    def kind(self, block: Json, item: Item) -> PieceKind:
        """What a block of a message is."""
        raise NotImplementedError

    def role(self, block: Json, item: Item) -> str | None:
        """Who tells a block that is told; see `Piece`."""
        return None

    def call(self, block: Item) -> Call:
        """A block that is a call."""
        raise NotImplementedError

    def output(self, block: Item, item: Item) -> ToolOutput:
        """A block of a message that is what a call gave."""
        raise NotImplementedError

    def words(self, block: Json) -> str:
        """What is said or told in a block; what is thought ends with `APART`."""
        return part_words(block)

    def with_words(self, block: Json, words: str) -> Json:
        """A block with other words."""
        return with_part_words(block, words)

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces: list[Piece] = []
        for item, blocks in zip(items, self.blocks_of(items), strict=True):
            owner = pieces[-1].owner + (not self.goes_on(item, home_of(pieces[-1:]))) if pieces else 0
            if not blocks:
                if pieces:
                    pieces[-1] = _with_beside(pieces[-1], item)
                else:
                    pieces.append(nobody_s(owner, item))
            for (kind, role), run in groupby(blocks, key=lambda block: self._kind(block, item)):
                pieces.append(self._piece(kind, owner, list(run), item, role))
        return pieces

    def original(self, pieces: Sequence[Piece]) -> list[Json]:
        items: list[Json] = []
        last: Json = None
        for piece in pieces:
            home = home_of([piece])
            items += [*([] if home is last else [home]), *_beside([piece])]
            last = home
        return items

    def rebuilt(self, pieces: Sequence[Piece]) -> list[Json]:
        blocks = [block for piece in pieces for block in parts(piece)]
        return [self.with_blocks(home_of(pieces), blocks), *_beside(pieces)]

    def reworded(self, piece: Piece, cuts: Sequence[Stretch]) -> Piece:
        blocks = parts_without(parts(piece), cuts, self.words, self.with_words)
        return replace(piece, text=without(piece.text, cuts), payload={**piece.payload, "items": blocks})

    def _kind(self, block: Json, item: Item) -> tuple[PieceKind, str | None]:
        kind = self.kind(block, item)
        return kind, self.role(block, item) if kind == "told" else None

    def _piece(self, kind: PieceKind, owner: int, blocks: list[Json], item: Item, role: str | None) -> Piece:
        objects = [block if isinstance(block, dict) else {} for block in blocks]
        calls = placed([self.call(block) for block in objects]) if kind == "call" else ()
        outputs = tuple(self.output(block, item) for block in objects) if kind == "output" else ()
        if kind == "call":
            text = "".join(map(shown_call, calls))
        else:
            text = "".join(output.text for output in outputs) or "".join(map(self.words, blocks))
        return Piece(kind, owner, text, calls, outputs, {"items": blocks, _HOME: item}, role)


def nobody_s(owner: int, item: Item) -> Piece:
    """A piece of a message that is nobody's word, and that no repair spans."""
    return Piece("told", owner, "", payload={"items": [], _HOME: item}, role="")


def home_of(pieces: Sequence[Piece]) -> dict[str, Json]:
    """The message that the blocks of the first piece are of."""
    return cast(dict[str, Json], pieces[0].payload[_HOME])


def _with_beside(piece: Piece, item: Item) -> Piece:
    """The piece with one more; there may be thousands, so that the list of them grows and is no new one each time."""
    if isinstance(known := piece.payload.get(_BESIDE), list):
        known.append(item)
        return piece
    return replace(piece, payload={**piece.payload, _BESIDE: [item]})


def _beside(pieces: Sequence[Piece]) -> list[Json]:
    """The messages without blocks that follow these pieces."""
    found = (piece.payload.get(_BESIDE) for piece in pieces)
    return [item for listed in found if isinstance(listed, list) for item in listed]
