"""How calls and their outputs are written into the text of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from retcon.transcripts.failures.rules import looks_clean
from retcon.transcripts.reading.pieces import Call, PieceKind, ToolOutput
from retcon.transcripts.types import Certainty


class Fragment(NamedTuple):
    """A piece of one message's text, before it is known whose it is."""

    kind: PieceKind
    text: str
    calls: tuple[Call, ...] = ()
    outputs: tuple[ToolOutput, ...] = ()


class Dialect(Protocol):
    name: str
    certainty: Certainty

    def used(self, said: Iterable[str], told: Iterable[str]) -> bool:
        """Whether a transcript is written so, by what the model says in it and what it is told; cheap."""
        ...

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        """A message of the model in pieces, without loss. answered: whether the next message is an output."""
        ...

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        """What a message of a tool says."""
        ...

    def told_outputs(self, text: str) -> tuple[ToolOutput, ...] | None:
        """The same of a message in the user's role; None where it is the user's own."""
        ...

    def cut_told(self, text: str) -> list[Fragment]:
        """Such a message in pieces, without loss: outputs, and what the user says beside them."""
        ...

    def clean_outputs(self, text: str, told: bool) -> int | None:
        """How many outputs a message has, 0 where it is no answer; None where one of them may be a failure.

        told: whether it is in the user's role.
        """
        ...

    def clean_calls(self, text: str) -> int | None:
        """How many calls a message of the model has (one per output), None where that takes a full reading."""
        ...

    def clean_inside(self, text: str) -> int | None:
        """How many outputs stand in the model's own message; None where one of them may be a failure."""
        ...


class JsonCall(msgspec.Struct):
    """A call whose JSON is in order, read no further than that."""

    name: str
    arguments: Mapping[str, msgspec.Raw]


_FEEDBACK = ("Your answer is wrong", "I don't understand your input", "Your answer is correct")


def is_feedback(text: str) -> bool:
    """Whether a message that begins with "Observation:" is a harness's word on a proposed solution, or on an input that
    it does not understand (MINT): the user's, not an output."""
    return text.removeprefix("Observation:").lstrip().startswith(_FEEDBACK)


def output_until(text: str, end: int, outputs: tuple[ToolOutput, ...]) -> list[Fragment]:
    """A message in the user's role whose outputs stand before `end`, and after it what the user says, if anything."""
    if not text[end:].strip():
        return [Fragment("output", text, (), outputs)]
    return [Fragment("output", text[:end], (), outputs), Fragment("told", text[end:])]


class Plain:
    """A dialect whose calls alone say that it is used."""

    def calls_in(self, text: str) -> bool:
        raise NotImplementedError

    def used(self, said: Iterable[str], told: Iterable[str]) -> bool:
        return any(map(self.calls_in, said))


def all_clean(outputs: tuple[ToolOutput, ...] | None) -> int | None:
    """How many they are (0 for None); None where one may be a failure."""
    for output in outputs or ():
        if not looks_clean(output.text):
            return None
    return len(outputs or ())


def inside(dialect: Dialect, text: str) -> int | None:
    """How many outputs stand in the model's own text, by cutting it; None where one of them, or a call, may be bad."""
    count = 0
    waiting: tuple[Call, ...] = ()
    for cut in dialect.cut(text, answered=False):
        if cut.kind == "call":
            waiting = cut.calls
        elif cut.kind == "output":
            found = all_clean(cut.outputs)
            if found is None or any(isinstance(call.arguments, str) for call in waiting):
                return None
            count += min(found, len(waiting))
    return count
