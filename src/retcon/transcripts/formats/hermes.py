"""Hermes and Qwen: `<tool_call>` with JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from retcon.chat import hermes
from retcon.chat.families.qwen3_coder import FAMILY, FUNCTION
from retcon.chat.types import FoundCall
from retcon.transcripts.failures.rules import looks_clean
from retcon.transcripts.reading.dialects import Dialect, Fragment, JsonCall, all_clean
from retcon.transcripts.reading.in_messages import InText, in_messages
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.types import NOT_JSON, Certainty

MARKS = ("tool_call", "tool_response")
_TAGGED = re.compile(r"<function=[^<>\s]+>\s*(?:<parameter=|</function>)")


def tagged(text: str) -> bool:
    """Whether calls are written as Qwen3-Coder writes them, with tags for the function and its arguments."""
    return _TAGGED.search(text) is not None


class Hermes(Dialect):
    """`<tool_call>` with JSON; answers in the role `tool`, or as `<tool_response>` in a user's message (Qwen)."""

    name = "hermes"
    _opens, _closes = "<tool_response>", "</tool_response>"
    _decoder = msgspec.json.Decoder(JsonCall)

    def calls_in(self, text: str) -> bool:
        return hermes.OPEN in text and not tagged(text)

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return hermes.find_calls(text)

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        found = list(self.find_calls(text))
        if not found:
            return [Fragment("said", text)]
        start = found[0].char
        calls = tuple(Call(c.name, c.arguments, c.char - start) for c in found)
        return [Fragment("said", text[:start])] * bool(start) + [Fragment("call", text[start:], calls)]

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        _, *blocks = text.split(self._opens)
        inside = [block.partition(self._closes)[0] for block in blocks]
        return tuple([ToolOutput(b.removeprefix("\n").removesuffix("\n")) for b in inside]) or (ToolOutput(text),)

    def told_outputs(self, text: str) -> tuple[ToolOutput, ...] | None:
        return self.outputs(text) if text[:40].lstrip().startswith("<tool_response>") else None

    def cut_told(self, text: str) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        while (start := text.find(self._opens, at)) >= 0:
            if text[at:start].strip():
                cuts.append(Fragment("told", text[at:start]))
                at = start
            closing = text.find(self._closes, start)
            end = len(text) if closing < 0 else closing + len(self._closes)
            cuts.append(Fragment("output", text[at:end], (), self.outputs(text[start:end])))
            at = end
        *before, last = cuts
        words = text[at:]
        return [*cuts, Fragment("told", words)] if words.strip() else [*before, last._replace(text=last.text + words)]

    def clean_outputs(self, text: str, told: bool) -> int | None:
        alone = text.startswith("<tool_response>\n") and text.endswith("\n</tool_response>")
        if alone and text.find("<", 1) == len(text) - len("</tool_response>"):
            return 1 if looks_clean(text[len("<tool_response>\n") : -len("\n</tool_response>")]) else None
        return all_clean(self.told_outputs(text) if told else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        start = text.find("<")
        if start < 0:
            return 0
        end = text.find("<", start + 1)
        try:
            if (
                text.startswith(hermes.OPEN, start)
                and text.startswith(hermes.CLOSE, end)
                and "<" not in text[end + 1 :]
            ):
                self._decoder.decode(text[start + len(hermes.OPEN) : end])
                return 1
            _, *blocks = text.split(hermes.OPEN)
            inside = [block.partition(hermes.CLOSE)[0] if hermes.CLOSE in block else "" for block in blocks]
            for one in inside:
                self._decoder.decode(one)
        except NOT_JSON:
            return None
        return len(inside)

    def clean_inside(self, text: str) -> int | None:
        return 0


class HermesInText(Hermes):
    """The same in one text, as rollout dumps have it (verl, slime): the turns follow each other, with or without the
    markers of Qwen's template, of which a decoder that skips special ids leaves the roles. answer: the tag of what a
    tool says; `interpreter` in slime's example of ReTool."""

    certainty = Certainty.TAGGED_TEXT

    def __init__(self, answer: str = "tool_response") -> None:
        self._opens, self._closes = f"<{answer}>", f"</{answer}>"
        self.signs = (hermes.OPEN, self._opens)
        self._answers = re.compile(
            r"\s*(?:<\|im_end\|>)?\s*(?P<marker><\|im_start\|>)?(?P<role>user|tool)?\s*"
            rf"(?P<answers>(?:{self._opens}.*?{self._closes}\s*)+)",
            re.DOTALL,
        )
        self._next = re.compile(r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:assistant\s*)?")

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        cuts: list[Fragment] = []
        at = 0
        for start, answers in self._rounds(text):
            if start > at:
                cuts.append(Fragment("said", text[at:start]))
            written = text[start : answers.start()]
            calls = tuple(Call(c.name, c.arguments, c.char) for c in self.find_calls(written))
            cuts.append(Fragment("call", written, calls))
            end, spoken = answers.end(), self._spoken_until(text, answers)
            following = self._next.match(text, spoken)
            at = following.end() if following is not None else spoken
            if spoken == end:
                end = at
            cuts.append(Fragment("output", text[answers.start() : end], (), self.outputs(answers["answers"])))
            if at > end:
                cuts.append(Fragment("told", text[end:at]))
        return [*cuts, Fragment("said", text[at:])] if text[at:] or not cuts else cuts

    def _spoken_until(self, text: str, answers: re.Match[str]) -> int:
        """Where the words end that a user says after outputs; where these end if there are none."""
        end = answers.end()
        if answers["role"] != "user":
            return end
        following = text.find(hermes.OPEN, end)
        sign = "<|im_end|>" if answers["marker"] else "\nassistant\n"
        at = text.find(sign, end - 1, following if following >= 0 else len(text))
        return at if text[end:at].strip() and at > end else end

    def _rounds(self, text: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Where calls that are answered begin, and their answers, with what stands around these."""
        last = text.rfind(self._closes)
        start = text.find(hermes.OPEN)
        at = start + len(hermes.OPEN)
        while start >= 0 and 0 <= (closing := text.find(hermes.CLOSE, at)) < last:
            at = closing + len(hermes.CLOSE)
            if (answers := self._answers.match(text, at)) is not None:
                yield start, answers
                start = text.find(hermes.OPEN, answers.end())
                at = start + len(hermes.OPEN)

    def clean_inside(self, text: str) -> int | None:
        return Dialect.clean_inside(self, text) if self._opens in text else 0


HERMES = Hermes()
HERMES_MESSAGES = in_messages(HERMES, marks=MARKS)
HERMES_TEXT = tuple(
    InText(dialect, dialect.signs, Certainty.TAGGED_TEXT, MARKS, ("verl", "slime"))
    for dialect in (HermesInText(), HermesInText("interpreter"))
)


class Qwen3Coder(Hermes):
    """In messages."""

    name = "qwen3_coder"

    def calls_in(self, text: str) -> bool:
        return tagged(text) and (hermes.OPEN in text or hermes.CLOSE in text)

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return FAMILY.find_calls(text)

    def clean_calls(self, text: str) -> int | None:
        found = list(self.find_calls(text)) if "<" in text else []
        return None if any(isinstance(call.arguments, str) for call in found) else len(found)


class Qwen3CoderInText(Qwen3Coder, HermesInText):
    """In one text."""

    certainty = Certainty.TAGGED_TEXT


QWEN3_CODER = Qwen3Coder()
QWEN3_CODER_MESSAGES = in_messages(QWEN3_CODER, marks=(*MARKS, "function"))
_in_text = Qwen3CoderInText()
QWEN3_CODER_TEXT = InText(_in_text, (FUNCTION, *_in_text.signs), Certainty.TAGGED_TEXT, MARKS, ("verl",))
