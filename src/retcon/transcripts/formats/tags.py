"""Programs and outputs in tags, in the model's own text or in messages: `<code>` and `<interpreter>` (ReTool),
`<python>` and `<result>` (ARPO, Tool-Star)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from retcon.transcripts.reading.dialects import Fragment, all_clean, inside, output_until
from retcon.transcripts.reading.in_messages import in_messages
from retcon.transcripts.reading.in_text import InText
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.registry import register, register_dialect
from retcon.transcripts.types import Certainty


class Tagged:
    """name: of the format. call, output: the tags. A program may be fenced within its tags. An output is one only where
    it follows a program, in the same text or at the beginning of the next message."""

    def __init__(self, name: str, call: str, output: str) -> None:
        self.name = name
        self.certainty = Certainty.TAGS
        self.call, self.output = call, output
        self.sign = f"<{output}>"
        self.signs = (f"<{call}>", self.sign)
        self._opens, self._closes = f"<{call}>", f"</{call}>"
        self._answer = re.compile(rf"\s*<{output}>(?P<text>.*?)(?:</{output}>|\Z)", re.DOTALL)

    def used(self, said: Iterable[str], told: Iterable[str]) -> bool:
        words = list(said)
        return any(self._opens in text for text in words) and any(self.sign in text for text in chain(words, told))

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        found = list(self._blocks(text))
        for n, (start, code, end) in enumerate(found):
            if start < at:
                continue  # it stands in an output
            output = self._answer.match(text, end)
            if output is None and not (answered and n + 1 == len(found)):
                continue
            if start > at:
                cuts.append(Fragment("said", text[at:start]))
            at = end if output is not None else len(text)
            cuts.append(Fragment("call", text[start:at], (Call("python", {"code": _unfenced(code)}),)))
            if output is not None:
                cuts.append(Fragment("output", output[0], (), (ToolOutput(output["text"].strip("\n")),)))
                at = output.end()
        return [*cuts, Fragment("said", text[at:])] if text[at:] or not cuts else cuts

    def _blocks(self, text: str) -> Iterator[tuple[int, str, int]]:
        """Closed blocks: where the opening tag is, the program, and where what follows the closing tag begins."""
        end = 0
        while (start := text.find(self._opens, end)) >= 0:
            code = start + len(self._opens)
            if (closing := text.find(self._closes, code)) < 0:
                return
            end = closing + len(self._closes)
            yield start, text[code:closing], end

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        found = self._answer.match(text)
        return (ToolOutput(found["text"].strip("\n") if found else text),)

    def told_outputs(self, text: str) -> tuple[ToolOutput, ...] | None:
        return self.outputs(text) if self._answer.match(text) else None

    def cut_told(self, text: str) -> list[Fragment]:
        found = self._answer.match(text)
        return output_until(text, found.end() if found else len(text), self.outputs(text))

    def clean_outputs(self, text: str, told: bool) -> int | None:
        return all_clean(self.told_outputs(text) if told else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        return 1 if next(self._blocks(text), None) is not None else 0

    def clean_inside(self, text: str) -> int | None:
        return inside(self, text) if self.sign in text else 0


_FENCED = re.compile(r"\s*```(?:[Pp]ython3?|py)?[ \t]*\r?\n(?P<code>.*?)\r?\n?```\s*", re.DOTALL)


def _unfenced(code: str) -> str:
    fenced = _FENCED.fullmatch(code)
    return fenced["code"] if fenced else code.strip("\n")


for _dialect in (Tagged("retool", "code", "interpreter"), Tagged("arpo", "python", "result")):
    register_dialect(_dialect)
    register(in_messages(_dialect, marks=(_dialect.call, _dialect.output)))
    register(InText(_dialect, _dialect.signs, Certainty.TAGGED_TEXT, (_dialect.call, _dialect.output)))
