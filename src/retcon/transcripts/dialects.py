"""How calls and their outputs are written into the text of messages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from retcon.chat import hermes
from retcon.transcripts.failures import may_fail
from retcon.transcripts.pieces import Call, Output, PieceKind


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of one message's text, before it is known whose it is."""

    kind: PieceKind
    text: str
    calls: tuple[Call, ...] = ()
    outputs: tuple[Output, ...] = ()


class Dialect(Protocol):
    name: str

    def calls_in(self, text: str) -> bool:
        """Whether a message of the model has a call, were it answered; cheap."""
        ...

    def cut(self, text: str, answered: bool) -> list[Cut]:
        """A message of the model in pieces, without loss. answered: whether the next message is an output."""
        ...

    def outputs(self, text: str) -> tuple[Output, ...]:
        """What a message of a tool says."""
        ...

    def told_outputs(self, text: str) -> tuple[Output, ...] | None:
        """The same of a message in the user's role; None where it is the user's own."""
        ...

    def clean_calls(self, text: str) -> int | None:
        """How many calls such a message has (one per output), None where that takes a full reading."""
        ...

    def clean_inside(self, text: str) -> int | None:
        """How many outputs stand in the model's own message; None where one of them may be a failure."""
        ...


class _HermesCall(msgspec.Struct):
    name: str
    arguments: Mapping[str, msgspec.Raw]


class Hermes:
    """`<tool_call>` with JSON; answers in the role `tool`, or as `<tool_response>` in a user's message (Qwen)."""

    name = "hermes"
    _response = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
    _decoder = msgspec.json.Decoder(_HermesCall)

    def calls_in(self, text: str) -> bool:
        return hermes.OPEN in text

    def cut(self, text: str, answered: bool) -> list[Cut]:
        found = list(hermes.find_calls(text))
        if not found:
            return [Cut("said", text)]
        start = found[0].char
        calls = tuple(Call(c.name, c.arguments, c.char - start) for c in found)
        return [Cut("said", text[:start])] * bool(start) + [Cut("call", text[start:], calls)]

    def outputs(self, text: str) -> tuple[Output, ...]:
        blocks = tuple(Output(m[1]) for m in self._response.finditer(text))
        return blocks or (Output(text),)

    def told_outputs(self, text: str) -> tuple[Output, ...] | None:
        return self.outputs(text) if text.lstrip().startswith("<tool_response>") else None

    def clean_calls(self, text: str) -> int | None:
        blocks = text.split(hermes.OPEN)
        for block in blocks[1:]:
            inside, closed, _ = block.partition(hermes.CLOSE)
            try:
                self._decoder.decode(inside if closed else "")
            except msgspec.DecodeError:
                return None
        return len(blocks) - 1

    def clean_inside(self, text: str) -> int | None:
        return 0


class Execute:
    """`<execute>` with code, answered by "Observation:" in the user's role (MINT, CodeAct). What a harness says about
    a proposed solution, or an input that it does not understand, is the user's, not an output."""

    name = "mint"
    _block = re.compile(r"<execute>(.*?)(?:</execute>|\Z)", re.DOTALL)
    _trailer = re.compile(r"(?:\nYou have \d+ steps? left[^\n]*)?(?:\nYou should take the last step[^\n]*)?\s*\Z")
    _feedback = ("Your answer is wrong", "I don't understand your input", "Your answer is correct")

    def calls_in(self, text: str) -> bool:
        return "<execute>" in text

    def cut(self, text: str, answered: bool) -> list[Cut]:
        start = text.find("<execute>")
        if start < 0 or not answered:
            return [Cut("said", text)]
        code = "\n".join(block.strip("\n") for block in self._block.findall(text))
        return [Cut("said", text[:start])] * bool(start) + [Cut("call", text[start:], (Call("python", {"code": code}),))]

    def outputs(self, text: str) -> tuple[Output, ...]:
        return (Output(self._trailer.sub("", text).removeprefix("Observation:").removeprefix("\n")),)

    def told_outputs(self, text: str) -> tuple[Output, ...] | None:
        if not text.startswith("Observation:"):
            return None
        if text[len("Observation:") :].lstrip().startswith(self._feedback):
            return None
        return self.outputs(text)

    def clean_calls(self, text: str) -> int | None:
        return 1

    def clean_inside(self, text: str) -> int | None:
        return 0


class Markdown:
    """```` ```python ```` blocks; the output as an ```` ```output ```` block after it, in the same message or the next,
    or in the role `tool`. A block that nothing answers is no call."""

    name = "markdown"
    _call = re.compile(r"(?<!`)```(?:python3?|py|tool_code)[ \t]*\r?\n(.*?\n)??```[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.IGNORECASE)
    _output = re.compile(r"\s*```(?:output|text|stdout|console|tool_output)?[ \t]*\r?\n(.*?)(?:\n?```(?:[ \t]*(?=\n)|[ \t]*\Z)|\Z)", re.DOTALL)  # fmt: skip
    _label = re.compile(r"\s*(?:<output>|(?:Execution )?(?:Output|Result|Observation)s?:)\s*", re.IGNORECASE)

    def calls_in(self, text: str) -> bool:
        return "```py" in text or "```Py" in text or "```tool_code" in text

    def cut(self, text: str, answered: bool) -> list[Cut]:
        cuts: list[Cut] = []
        at = 0
        found = list(self._call.finditer(text))
        for n, call in enumerate(found):
            output = self._inside(text, call.end())
            last = n + 1 == len(found)
            if output is None and not (last and answered):
                continue
            if call.start() > at:
                cuts.append(Cut("said", text[at : call.start()]))
            at = call.end() if output is not None else len(text)
            cuts.append(Cut("call", text[call.start() : at], (Call("python", {"code": (call[1] or "").removesuffix("\n")}),)))
            if output is not None:
                cuts.append(Cut("output", text[at : output.end()], (), (Output(output[1]),)))
                at = output.end()
        return [*cuts, Cut("said", text[at:])] if text[at:] or not cuts else cuts

    def _inside(self, text: str, at: int) -> re.Match[str] | None:
        found = self._output.match(text, at)
        return found if found and re.match(r"\s*```(?:output|stdout|tool_output)", text[at:]) else None

    def outputs(self, text: str) -> tuple[Output, ...]:
        fenced = self._output.match(text)
        return (Output(fenced[1] if fenced else self._label.sub("", text, count=1)),)

    def told_outputs(self, text: str) -> tuple[Output, ...] | None:
        labelled = self._label.match(text) or re.match(r"\s*```(?:output|stdout|tool_output)", text)
        return self.outputs(text) if labelled else None

    def clean_calls(self, text: str) -> int | None:
        return 1

    def clean_inside(self, text: str) -> int | None:
        if "```output" not in text and "```stdout" not in text and "```tool_output" not in text:
            return 0
        count = 0
        for cut in self.cut(text, answered=False):
            count += len(cut.outputs)
            if any(may_fail(o.text) for o in cut.outputs):
                return None
        return count


DIALECTS: tuple[Dialect, ...] = (Hermes(), Execute(), Markdown())
