"""What a family of models has in common: how messages are framed, how turns end, how calls are written and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from retcon.chat.types import Answer, FoundCall, Piece, Told, words
from retcon.core.schema import ToolSpec

Written = tuple[str, Mapping[str, object] | str]
"""A call as it is to be written: the tool's name, and its arguments, or the text that could not be read as such."""


class Framing(Protocol):
    """A conversation in pieces. Each begins where the one before ended: what was sampled is never rendered again."""

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        """All that stands before the model's first turn, up to where that turn opens."""
        ...

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        """What follows the end of a turn with calls, up to where the next turn opens; told: the messages after them. A
        role that the family has no place for there is told as the user's."""
        ...

    def answered(self, told: Sequence[Told]) -> list[Piece]:
        """What follows the end of a turn without calls, up to where the next turn opens."""
        ...

    def thought(self, text: str, *, last: bool) -> list[Piece] | None:
        """What a turn begins with, after its opening, for what the model thought first; None: there is no place for it.
        text: "" for nothing thought. last: whether the conversation ends with the turn."""
        return None if text else []


class Family(Framing, Protocol):
    """One family, in a file of its own under `retcon.chat.families`, or in yours, named `my_package.my_module:MINE`.

    Its framing is the shipped one; a model's own template takes its place where the model has one that shows tools.
    """

    name: str
    marks: tuple[str, ...] = ()
    """What a template of this family holds (and, where a folder has no template, its tokenizer)."""
    template: str = ""
    """The shipped framing as Jinja, given to models that are trained in it, and known again in them; empty where the
    marks tell, or nothing does."""
    controls: tuple[str, ...] = ()
    """Control tokens that the shipped framing needs, besides the first of `ends`."""
    ends: tuple[str, ...]
    """Control tokens that end a turn well; the first closes a turn that was ended otherwise."""
    past_ends: tuple[str, ...] = ()
    """Others that a template writes in their place once the conversation has gone on; the model samples none of them
    as an end."""
    stops: tuple[str, ...] = ()
    """Others that end a generation, where the tokenizer has them."""
    closes: tuple[str, ...] = ()
    """Control tokens that end a message within a turn, where a turn can have several."""
    piecewise: bool = False
    """Whether glue and words are encoded apart, and not as the whole text is."""
    names_calls: bool = True
    """Whether a call says which tool it is for."""
    labels_calls: bool = False
    """Whether an observation must name its call as the model did."""
    calls_are_text: bool = True
    """Whether calls are written without control tokens."""

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """The calls in a turn's text, in order, in time in proportion to its length. Never raises on account of it.

        The first call's `char` is where all that belongs to calls begins, so that a turn can be cut there.
        """
        ...

    def typed(self, call: FoundCall, tools: Sequence[ToolSpec]) -> FoundCall:
        """The call, with arguments of the types that its tool's schema says, where its writing does not say them."""
        return call

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        """A whole turn as a model of the family writes it, without its end."""
        ...

    def end_of(self, calls: Sequence[Written]) -> str:
        """The control token that ends such a turn."""
        return self.ends[0]

    def shown(self, text: str) -> str:
        """What a user is shown of a turn's text without its end, or of how one begins: what is no framing of messages
        within it."""
        return text

    def observations_in(self, text: str) -> list[str]:
        """What tools answered in a conversation of this family that is text, in order."""
        ...


def with_system(messages: Sequence[Told], shown: str) -> Sequence[Told]:
    """The messages, with `shown` after what the system says."""
    if messages and messages[0][0] == "system":
        return [("system", f"{messages[0][1]}\n\n{shown}"), *messages[1:]]
    return [("system", shown), *messages]


def joined(text: str, calls: Iterable[str]) -> list[Piece]:
    """Words and calls, each on lines of its own."""
    return [words("\n".join([text] * bool(text) + list(calls)))]
