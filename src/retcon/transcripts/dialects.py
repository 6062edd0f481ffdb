"""How calls and their outputs are written into the text of messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import msgspec

from retcon.chat import hermes
from retcon.transcripts.failures import looks_clean
from retcon.transcripts.pieces import Call, Output, PieceKind


class Cut(NamedTuple):
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


class Hermes:
    """`<tool_call>` with JSON; answers in the role `tool`, or as `<tool_response>` in a user's message (Qwen)."""

    name = "hermes"
    _decoder = msgspec.json.Decoder(JsonCall)

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
        _, *blocks = text.split("<tool_response>")
        inside = [block.partition("</tool_response>")[0] for block in blocks]
        return tuple([Output(b.removeprefix("\n").removesuffix("\n")) for b in inside]) or (Output(text),)

    def told_outputs(self, text: str) -> tuple[Output, ...] | None:
        return self.outputs(text) if text[:40].lstrip().startswith("<tool_response>") else None

    def clean_outputs(self, text: str, told: bool) -> int | None:
        alone = text.startswith("<tool_response>\n") and text.endswith("\n</tool_response>")
        if alone and text.find("<", 1) == len(text) - len("</tool_response>"):
            return 1 if looks_clean(text[len("<tool_response>\n") : -len("\n</tool_response>")]) else None
        return _all_clean(self.told_outputs(text) if told else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        start = text.find("<")
        if start < 0:
            return 0
        end = text.find("<", start + 1)
        if text.startswith(hermes.OPEN, start) and text.startswith(hermes.CLOSE, end) and text.find("<", end + 1) < 0:
            inside = [text[start + len(hermes.OPEN) : end]]
        else:
            _, *blocks = text.split(hermes.OPEN)
            inside = [block.partition(hermes.CLOSE)[0] if hermes.CLOSE in block else "" for block in blocks]
        try:
            for one in inside:
                self._decoder.decode(one)
        except msgspec.DecodeError:
            return None
        return len(inside)

    def clean_inside(self, text: str) -> int | None:
        return 0


class Execute:
    """`<execute>` with code, answered by "Observation:" in the user's role (MINT, CodeAct). What a harness says about
    a proposed solution, or an input that it does not understand, is the user's, not an output."""

    name = "mint"
    _block = re.compile(r"<execute>(.*?)(?:</execute>|\Z)", re.DOTALL)
    _trailer = re.compile(r"\nYou have \d+ steps? left[^\n]*(?:\nYou should take the last step[^\n]*)?\s*\Z")
    _feedback = ("Your answer is wrong", "I don't understand your input", "Your answer is correct")

    def calls_in(self, text: str) -> bool:
        return "<execute>" in text

    def cut(self, text: str, answered: bool) -> list[Cut]:
        start = text.find("<execute>")
        if start < 0 or not answered:
            return [Cut("said", text)]
        code = "\n".join(block.strip("\n") for block in self._block.findall(text))
        return [Cut("said", text[:start])] * bool(start) + [
            Cut("call", text[start:], (Call("python", {"code": code}),))
        ]

    def outputs(self, text: str) -> tuple[Output, ...]:
        at = text.rfind("\nYou have ")
        if at >= 0 and self._trailer.match(text, at):
            text = text[:at]
        return (Output(text.removeprefix("Observation:").removeprefix("\n")),)

    def told_outputs(self, text: str) -> tuple[Output, ...] | None:
        if not text.startswith("Observation:"):
            return None
        if text[len("Observation:") :].lstrip().startswith(self._feedback):
            return None
        return self.outputs(text)

    def clean_outputs(self, text: str, told: bool) -> int | None:
        return _all_clean(self.told_outputs(text) if told else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        return 1 if self.calls_in(text) else 0

    def clean_inside(self, text: str) -> int | None:
        return 0


class Markdown:
    """```` ```python ```` blocks; the output as an ```` ```output ```` block after it, in the same message or the next,
    or in the role `tool`. A block that nothing answers is no call."""

    name = "markdown"
    _open = re.compile(r"```(?:[Pp]ython3?|py|PYTHON|tool_code)[ \t]*\r?\n")
    _answer = re.compile(r"\s*```(?:output|stdout|tool_output)[ \t]*\r?\n")
    _fenced = re.compile(r"\s*```(?:output|text|stdout|console|tool_output)?[ \t]*\r?\n")
    _wrapped = re.compile(r"\s*[`<EeOoRr]")  # how a fence or a label begins
    _answers = ("```output", "```stdout", "```tool_output")
    _label = re.compile(r"\s*(?:<output>|(?:[Ee]xecution )?(?:[Oo]utput|[Rr]esult|[Oo]bservation)s?:)\s*")

    def calls_in(self, text: str) -> bool:
        return "`" in text and ("```py" in text or "```Py" in text or "```PY" in text or "```tool_code" in text)

    def cut(self, text: str, answered: bool) -> list[Cut]:
        cuts: list[Cut] = []
        at = 0
        found = list(self._blocks(text))
        for n, (start, code, code_end, end) in enumerate(found):
            output = self._answer.match(text, end)
            if output is None and not (answered and n + 1 == len(found)):
                continue
            if start > at:
                cuts.append(Cut("said", text[at:start]))
            at = end if output is not None else len(text)
            cuts.append(Cut("call", text[start:at], (Call("python", {"code": text[code:code_end]}),)))
            if output is not None:
                inside_end, at = _closed(text, output.end())
                cuts.append(Cut("output", text[end:at], (), (Output(text[output.end() : inside_end]),)))
        return [*cuts, Cut("said", text[at:])] if text[at:] or not cuts else cuts

    def _blocks(self, text: str) -> Iterator[tuple[int, int, int, int]]:
        """Closed blocks of Python: where the fence, the program, the closing line and what follows it begin."""
        at = 0
        while (opening := self._open.search(text, at)) is not None:
            at = opening.end()
            end, after = _closed(text, at)
            if end < len(text) and text[opening.start() - 1 : opening.start()] != "`":
                yield opening.start(), at, max(at, end), after
                at = after

    def outputs(self, text: str) -> tuple[Output, ...]:
        fenced = self._fenced.match(text)
        if fenced:
            return (Output(text[fenced.end() : _closed(text, fenced.end())[0]]),)
        labelled = self._label.match(text)
        return (Output(text[labelled.end() :] if labelled else text),)

    def told_outputs(self, text: str) -> tuple[Output, ...] | None:
        return self.outputs(text) if self._label.match(text) or self._answer.match(text) else None

    def clean_outputs(self, text: str, told: bool) -> int | None:
        if not told and self._wrapped.match(text) is None:
            return 1 if looks_clean(text) else None
        return _all_clean(self.told_outputs(text) if told else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        return 1 if self.calls_in(text) and next(self._blocks(text), None) is not None else 0

    def clean_inside(self, text: str) -> int | None:
        count, at = 0, 0
        while (start := _fence(text, at)) >= 0:
            # Nothing but the plain shape, words and one block and right after it its output, is read here.
            code_end = _fence(text, start + 3)
            begin = code_end + len("```\n```output\n")
            if not (text.startswith("```python\n", start) and text.startswith("\n```\n```output\n", code_end - 1)):
                return None if count or any(name in text for name in self._answers) else 0
            end = _fence(text, begin)
            at = end + 3
            if end < 0 or text[end - 1] != "\n" or text[at : at + 1] not in ("", "\n"):
                return None
            if not looks_clean(text[begin : end - 1]):
                return None
            count += 1
        return count


def _fence(text: str, start: int) -> int:
    """Where the next three backticks are, -1 for none; most texts have no other ones."""
    at = text.find("`", start)
    return at if at < 0 or text.startswith("```", at) else text.find("```", at)


def _all_clean(outputs: tuple[Output, ...] | None) -> int | None:
    """How many they are (0 for None); None where one may be a failure."""
    for output in outputs or ():
        if not looks_clean(output.text):
            return None
    return len(outputs or ())


def _closed(text: str, start: int) -> tuple[int, int]:
    """Where the text of a fenced block from `start` ends, and where what follows its closing line begins."""
    at = start - 1  # the closing line may follow the opening one at once
    while (at := text.find("\n```", at)) >= 0:
        line_end = text.find("\n", at + 4)
        line_end = len(text) if line_end < 0 else line_end
        if not text[at + 4 : line_end].strip(" \t\r"):
            return max(start, at), min(len(text), line_end + 1)
        at += 4
    return len(text), len(text)


DIALECTS: tuple[Dialect, ...] = (Hermes(), Execute(), Markdown())
