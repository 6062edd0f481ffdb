"""Formats of steps that hold what the model thinks and says, its calls and what these gave, in one item."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.transcripts.reading.items import APART, text_of, with_text, without_words
from retcon.transcripts.reading.itemwise import Item, Itemwise, Pieces, beside_words, loose_words, parts
from retcon.transcripts.reading.pieces import Call, Piece, Stretch, ToolOutput
from retcon.transcripts.types import Json

_THOUGHT = "thought"
"""Beside words: that they are what was thought."""


class Steps(Itemwise):
    """A format of steps; a subclass says who speaks in one, and where its calls and their results are."""

    text = "content"
    """Where a step has its words."""

    def speaker(self, item: Item) -> str | None:
        """`assistant`, `user` or `system`; None for an item that is nobody's word."""
        raise NotImplementedError

    def speakers(self, items: Sequence[Item]) -> Sequence[str | None]:
        """Who speaks in each."""
        return [*map(self.speaker, items)]

    def thought(self, item: Item) -> str:
        """What the model thinks before the words of a step."""
        return ""

    def with_thought(self, item: Item, thought: str | None, home: Item) -> Json:
        """The step with a thought, None for none; home: the step that it comes from."""
        return item

    def calls(self, item: Item) -> list[Call]:
        raise NotImplementedError

    def outputs(self, item: Item) -> list[ToolOutput]:
        """What the calls of a step gave."""
        raise NotImplementedError

    def group(self, items: Sequence[Item]) -> list[Piece]:
        pieces = Pieces()
        for item, who in zip(items, self.speakers(items), strict=True):
            text = text_of(item.get(self.text))
            if who is None:
                pieces.beside(item)
                continue
            if who != "assistant":
                pieces.told(item, text, role=who)
                continue
            calls, outputs, thought = self.calls(item), self.outputs(item), self.thought(item)
            if thought:
                pieces.said(item, thought + APART, moved=[], apart=True, beside={_THOUGHT: item})
            pieces.said(item, text, moved=[] if calls else None, apart=not thought)
            if calls:
                pieces.called(item, calls)
            if outputs:
                pieces.answered(None, outputs)
        return pieces.all

    def rebuilt(self, pieces: Sequence[Piece]) -> list[Json]:
        """The fix's step, with the words that it is to have and what was thought before these."""
        thoughts = [piece for piece in pieces if _THOUGHT in beside_words([piece])]
        words = loose_words([piece for piece in pieces if piece not in thoughts])
        first, *beside = [item for piece in pieces for item in parts(piece) if isinstance(item, dict)]
        if words is not None:
            first = {**first, self.text: with_text(first.get(self.text), words)}
        home = beside_words(thoughts).get(_THOUGHT)
        thought = thoughts[0].text.removesuffix(APART) if thoughts else None
        return [self.with_thought(first, thought, home if isinstance(home, dict) else {}), *beside]

    def without_words(self, item: Json, cuts: Sequence[Stretch]) -> Json:
        return {**item, self.text: without_words(item.get(self.text), cuts)} if isinstance(item, dict) else item
