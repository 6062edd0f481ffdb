"""Registry of transcript formats and dialects: modules of `formats`, and plug-ins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import msgspec

from retcon.core.errors import RecordError
from retcon.core.registry import InstanceRegistry
from retcon.transcripts.pieces import Call, PieceKind, ToolOutput
from retcon.transcripts.types import Certainty, Format
from retcon.transcripts.verdicts import looks_clean


class Fragment(NamedTuple):
    """A piece of one message's text, before its item is known."""

    kind: PieceKind
    text: str
    calls: tuple[Call, ...] = ()
    outputs: tuple[ToolOutput, ...] = ()


class Dialect:
    """Base of the notations of calls and outputs in text."""

    name: str
    certainty = Certainty.TAGS

    def calls_in(self, text: str) -> bool:
        """Return whether a model's text has a call (cheap)."""
        raise NotImplementedError

    def used(self, replies: Iterable[str], contexts: Iterable[str]) -> bool:
        """Whether a transcript uses this dialect, by its words and context (cheap)."""
        return any(map(self.calls_in, replies))

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        """Cut a model's message without loss. answered: whether the next message is an output."""
        raise NotImplementedError

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        """Return the outputs in a tool's message."""
        raise NotImplementedError

    def user_output_end(self, text: str) -> int | None:
        """Return where the output at a user message's start ends."""
        raise NotImplementedError

    def user_outputs(self, text: str) -> tuple[ToolOutput, ...] | None:
        """Return the outputs in a user's message; None for its own words."""
        end = self.user_output_end(text)
        return None if end is None else self.outputs(text[:end])

    def cut_user_message(self, text: str) -> list[Fragment]:
        """Cut a user's message without loss into outputs and the user's words."""
        end = self.user_output_end(text)
        if end is None or not text[end:].strip():
            return [Fragment("result", text, (), self.outputs(text))]
        return [Fragment("result", text[:end], (), self.outputs(text[:end])), Fragment("context", text[end:])]

    def clean_outputs(self, text: str, by_user: bool) -> int | None:
        """Count a message's outputs, 0 for a user's words; None where one may fail."""
        return all_clean(self.user_outputs(text) if by_user else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        """Count a model message's calls; None where that takes full reading."""
        return sum(len(cut.calls) for cut in self.cut(text, answered=True))

    def clean_inside(self, text: str) -> int | None:
        """Count outputs in the model's message; None where one may fail."""
        count = 0
        waiting: tuple[Call, ...] = ()
        for cut in self.cut(text, answered=False):
            if cut.kind == "call":
                waiting = cut.calls
            elif cut.kind == "result":
                found = all_clean(cut.outputs)
                if found is None or any(isinstance(call.arguments, str) for call in waiting):
                    return None
                count += min(found, len(waiting))
        return count


class JsonCall(msgspec.Struct):
    """Call with valid JSON, whose arguments are not read."""

    name: str
    arguments: Mapping[str, msgspec.Raw]


FEEDBACK = ("Your answer is wrong", "I don't understand your input", "Your answer is correct")


def is_feedback(text: str) -> bool:
    """Whether an `Observation:` is MINT's feedback on a solution: a user's words."""
    return text.removeprefix("Observation:").lstrip().startswith(FEEDBACK)


def all_clean(outputs: tuple[ToolOutput, ...] | None) -> int | None:
    """Count outputs; None where one may be a failure."""
    for output in outputs or ():
        if not looks_clean(output.text):
            return None
    return len(outputs or ())


FORMATS = InstanceRegistry("transcript_format", RecordError, ("auto",), base=Format)  # type: ignore[type-abstract]
DIALECTS = InstanceRegistry("dialect", base=Dialect)


@cache
def formats() -> Sequence[Format]:
    """Return all formats, the most certain first."""
    return sorted(FORMATS.all(), key=lambda f: (f.certainty, f.name))


@cache
def dialects() -> Sequence[Dialect]:
    """Return all dialects, the most certain first; Markdown last, as any text may have fences."""
    return sorted(DIALECTS.all(), key=lambda d: (d.certainty, d.name))


def find_formats(name: str) -> Sequence[Format]:
    """Return the formats of a name or import path, all for `auto`. Raises RecordError."""
    return formats() if name == "auto" else FORMATS.find_all(name)
