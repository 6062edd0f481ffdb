"""ChatML, which several families frame their messages in."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.chat.family import Family
from retcon.chat.types import END_OF_TEXT, TURN_END, TURN_START, Answer, Piece, Told, glue, words
from retcon.core.schema import ToolSpec


class ChatML(Family):
    """Turns between `<|im_start|>role` and `<|im_end|>`, a line end after each.

    before, between, after: the glue before the first observation, between two, after the last.
    """

    controls = (TURN_START,)
    ends = (TURN_END,)
    stops = (END_OF_TEXT,)
    before: str
    between: str
    after: str

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        told = [_told(role, text) for role, text in self.with_tools(messages, tools)]
        if not told:
            return [glue(f"{TURN_START}assistant\n")]
        *first, (start, text, end) = told
        return [*(piece for three in first for piece in three), start, text, glue(f"{end.text}{TURN_START}assistant\n")]

    def with_tools(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> Sequence[Told]:
        """The messages, with what the family tells of tools in the system's."""
        return messages

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        pieces: list[Piece] = []
        for n, answer in enumerate(answers):
            pieces += [glue(self.between if n else self.before), Piece("observation", answer.text)]
        if told:
            return [*pieces, glue(f"{self.after}\n"), *_asked(told)]
        return [*pieces, glue(f"{self.after}\n{TURN_START}assistant\n")]

    def answered(self, told: Sequence[Told]) -> list[Piece]:
        return [glue("\n"), *_asked(told)]


def _told(role: str, text: str) -> tuple[Piece, Piece, Piece]:
    return glue(f"{TURN_START}{role}\n"), words(text), glue(f"{TURN_END}\n")


def _asked(told: Sequence[Told]) -> list[Piece]:
    return [*(piece for role, text in told for piece in _told(role, text)), glue(f"{TURN_START}assistant\n")]
