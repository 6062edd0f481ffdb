"""What a family of models has in common: how messages are framed, how turns end, how calls are written and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from retcon.chat.types import Answer, FoundCall, Piece, Told, words
from retcon.core.registry import InstanceRegistry
from retcon.core.types import ToolSpec

Written = tuple[str, Mapping[str, object] | str]
"""A call as it is to be written: the tool's name, and its arguments, or the text that could not be read as such."""


@runtime_checkable
class Framing(Protocol):
    """A conversation in pieces. Each begins where the one before ended: what was sampled is never rendered again."""

    def opened(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> list[Piece]:
        """All that stands before the model's first turn, up to where that turn opens."""
        ...

    def observed(self, answers: Sequence[Answer], told: Sequence[Told]) -> list[Piece]:
        """What follows the end of a turn with calls, up to where the next turn opens.

        told: the messages after the answers. A role that the model has no place for there becomes the user's.
        """
        ...

    def answered(self, told: Sequence[Told], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        """What follows the end of a turn without calls, up to where the next turn opens; tools: that are shown."""
        ...

    def thought(self, text: str, *, last: bool) -> list[Piece] | None:
        """What a turn begins with, after its opening, for what the model thought first; None: there is no place for it.

        text: "" for nothing thought. last: whether the conversation ends with the turn.
        """
        return None if text else []


@runtime_checkable
class Family(Protocol):
    """One family, in a file of its own under `retcon.chat.families`, or in yours, named `my_package.my_module:MINE`.

    Messages are framed by the model's own template, else by `template`, or by the family where it is a `Framing`, too.
    """

    name: str
    marks: tuple[str, ...] = ()
    """What a template holds whose calls are not learnt but read and written by this family."""
    tokens: tuple[str, ...] = ()
    """Control tokens by which a tokenizer without a template is of this family."""
    template: str = ""
    """Jinja, given to models that are trained in it, and known again in them; empty: only the model's own is used."""
    controls: tuple[str, ...] = ()
    """Control tokens that `template` needs, besides the first of `ends`."""
    ends: tuple[str, ...]
    """Control tokens that end a turn well; the first closes a turn that was ended otherwise."""
    past_ends: tuple[str, ...] = ()
    """Those that a template writes in their place once the conversation has gone on; never sampled as an end."""
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
    thoughts: tuple[tuple[str, str], ...] = ()
    """What stands before and after what a model thinks."""
    opens_thought: bool = False
    """Whether the prompt opens the first kind of thought."""
    parallel: bool = True
    """Whether a turn may have several calls."""
    writes_calls: bool = True
    """Whether the model writes calls as its template does."""
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
        """What a user is shown of a turn's text, or of how one begins: what is no framing of messages within it."""
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


AUTO = "auto"
FAMILIES = InstanceRegistry("chat_family", besides=(AUTO,), base=Family)  # type: ignore[type-abstract]


def names() -> tuple[str, ...]:
    """The names of the families in alphabetical order."""
    return FAMILIES.names


def named(style: str) -> Family:
    """The family of a name or import path. Raises RecipeError."""
    return FAMILIES.find(style)


def shipped_family(template: str) -> Family | None:
    """The family whose own template this is, or whose marks all stand in it, if any."""
    families = FAMILIES.all()
    own = [family for family in families if template and family.template == template]
    marked = [family for family in families if family.marks and all(mark in template for mark in family.marks)]
    return next(iter([*own, *marked]), None)


def recognised(tokens: Collection[str]) -> Family | None:
    """The family whose control tokens a tokenizer without a template has, if any."""
    own = (family for family in FAMILIES.all() if family.tokens and all(token in tokens for token in family.tokens))
    return next(own, None)
