"""Protocols of chat families: message framing, ends of turns, call syntax."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from retcon.chat.types import Answer, FoundCall, Piece, TextMessage, words
from retcon.core.registry import InstanceRegistry
from retcon.core.types import ToolSpec

NamedCall = tuple[str, Mapping[str, object] | str]
"""A call to write: the tool's name, and its arguments, or the text that could not be parsed."""


@runtime_checkable
class Framing(Protocol):
    """Renderer of a conversation in pieces: sampled text is never rendered again."""

    def render_prompt(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec]) -> list[Piece]:
        """Render everything before the model's first turn, with its opening."""

    def render_results(self, answers: Sequence[Answer], messages: Sequence[TextMessage]) -> list[Piece]:
        """Render what follows a turn with calls, with the next turn's opening.

        messages: those after the answers. A role that the template does not support there becomes the user's.
        """

    def render_messages(self, messages: Sequence[TextMessage], tools: Sequence[ToolSpec] = ()) -> list[Piece]:
        """Render what follows a turn without calls. tools: those that the template shows there."""

    def render_thought(self, text: str, *, last: bool) -> list[Piece] | None:
        """Render the reasoning that begins a turn; None where the template drops it.

        text: "" for no reasoning. last: whether the conversation ends with the turn.
        """
        return None if text else []


@runtime_checkable
class Family(Protocol):
    """A family of models with one syntax of calls.

    Messages are framed by the model's own template, else by `template`, or by the family where it is a `Framing`, too.
    Shipped ones are modules of `retcon.chat.families`; yours is `my_package.my_module:MINE`.
    """

    name: str
    marks: tuple[str, ...] = ()
    """Strings that identify a template as this family's."""
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
    """Markers before and after reasoning."""
    opens_thought: bool = False
    """Whether the prompt opens the first kind of thought."""
    parallel: bool = True
    """Whether a turn may have several calls."""
    writes_calls: bool = True
    """Whether the model writes calls as its template does."""
    calls_are_text: bool = True
    """Whether calls are written without control tokens."""

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """Find the calls in a turn's text, in order, in linear time; never raises.

        The first call's `char` is where all that belongs to calls begins, so that a turn can be cut there.
        """

    def cast_arguments(self, call: FoundCall, tools: Sequence[ToolSpec]) -> FoundCall:
        """Cast arguments to the schema's types where the syntax has only text."""
        return call

    def render_turn(self, text: str, calls: Sequence[NamedCall]) -> list[Piece]:
        """Render a whole turn as the model writes it, without its end."""

    def end_of(self, calls: Sequence[NamedCall]) -> str:
        """Return the control token that ends a turn with these calls."""
        return self.ends[0]

    def visible_text(self, text: str) -> str:
        """Return a turn's text, or a beginning, without framing of messages."""
        return text

    def observations_in(self, text: str) -> list[str]:
        """Return the tools' answers in a conversation's text, in order."""


def append_system(messages: Sequence[TextMessage], shown: str) -> Sequence[TextMessage]:
    """Append `shown` to the system message, or add one."""
    if messages and messages[0][0] == "system":
        return [("system", f"{messages[0][1]}\n\n{shown}"), *messages[1:]]
    return [("system", shown), *messages]


def join_lines(text: str, calls: Iterable[str]) -> list[Piece]:
    """Join words and calls by newlines."""
    return [words("\n".join([text] * bool(text) + list(calls)))]


AUTO = "auto"
FAMILIES = InstanceRegistry("chat_family", besides=(AUTO,), base=Family)  # type: ignore[type-abstract]


def family_of_template(template: str) -> Family | None:
    """Return the family with this template, or with its marks."""
    families = FAMILIES.all()
    own = [family for family in families if template and family.template == template]
    marked = [family for family in families if family.marks and all(mark in template for mark in family.marks)]
    return next(iter([*own, *marked]), None)


def family_of_tokens(tokens: Collection[str]) -> Family | None:
    """Return the family whose control tokens a tokenizer has."""
    own = (family for family in FAMILIES.all() if family.tokens and all(token in tokens for token in family.tokens))
    return next(own, None)
