"""What a family of models has in common: how messages are framed, how turns end, how calls are written and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from retcon.chat.types import END_OF_TEXT, TURN_END, TURN_START, Answer, FoundCall, Piece, Told, glue, words
from retcon.core.errors import RecipeError
from retcon.core.registry import InstanceRegistry
from retcon.core.types import ToolSpec

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

    def answered(self, told: Sequence[Told], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        """What follows the end of a turn without calls, up to where the next turn opens; tools: that are shown."""
        ...

    def thought(self, text: str, *, last: bool) -> list[Piece] | None:
        """What a turn begins with, after its opening, for what the model thought first; None: there is no place for it.
        text: "" for nothing thought. last: whether the conversation ends with the turn."""
        return None if text else []


@runtime_checkable
class Family(Framing, Protocol):
    """One family, in a file of its own under `retcon.chat.families`, or in yours, named `my_package.my_module:MINE`.

    Its framing is the shipped one; a model's own template takes its place where the model has one that shows tools.
    """

    name: str
    marks: tuple[str, ...] = ()
    """What a template holds that is not learnt but framed by this family."""
    tokens: tuple[str, ...] = ()
    """Control tokens by which a tokenizer without a template is of this family; empty: `marks`."""
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


AUTO = "auto"
FAMILIES = InstanceRegistry("chat_family", besides=(AUTO,), base=Family)  # type: ignore[type-abstract]


def names() -> tuple[str, ...]:
    """The names of the families in alphabetical order."""
    return FAMILIES.names


def named(style: str) -> Family:
    """The family of a name or import path. Raises RecipeError."""
    return FAMILIES.find(style)


def template_of(style: str) -> str:
    """The chat template that a model which learns in a style is to have; empty for the one that it has."""
    return "" if style == AUTO else getattr(named(style), "template", "")


def shipped_family(template: str) -> Family | None:
    """The family whose own template this is, or whose marks all stand in it, if any."""
    families = FAMILIES.all()
    own = [family for family in families if family.template and family.template == template]
    marked = [f for f in families if f.marks and all(mark in template for mark in f.marks)]
    return own[0] if own else max(marked, key=lambda family: len(family.marks), default=None)


def recognised(tokens: Collection[str], where: str) -> Family:
    """The family whose control tokens a tokenizer has, the most of them first. Raises RecipeError."""
    known = [f for f in FAMILIES.all() if (own := f.tokens or f.marks) and all(token in tokens for token in own)]
    if not known:
        raise RecipeError(f"{where} is of no known family: set model.style to one of {', '.join(names())}")
    return max(known, key=lambda family: len(family.tokens or family.marks))


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

    def answered(self, told: Sequence[Told], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        return [glue("\n"), *_asked(told)]


def _told(role: str, text: str) -> tuple[Piece, Piece, Piece]:
    return glue(f"{TURN_START}{role}\n"), words(text), glue(f"{TURN_END}\n")


def _asked(told: Sequence[Told]) -> list[Piece]:
    return [*(piece for role, text in told for piece in _told(role, text)), glue(f"{TURN_START}assistant\n")]
