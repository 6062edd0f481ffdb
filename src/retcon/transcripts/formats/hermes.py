"""Hermes and Qwen: `<tool_call>` with JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from retcon.chat import hermes
from retcon.transcripts.chat import chat
from retcon.transcripts.dialects import Cut, JsonCall, Plain, all_clean, inside
from retcon.transcripts.failures import looks_clean
from retcon.transcripts.pieces import Call, Output
from retcon.transcripts.registry import register, register_dialect
from retcon.transcripts.text import Text
from retcon.transcripts.types import Certainty


class Hermes(Plain):
    """`<tool_call>` with JSON; answers in the role `tool`, or as `<tool_response>` in a user's message (Qwen)."""

    name = "hermes"
    certainty = Certainty.TAGS
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
        return all_clean(self.told_outputs(text) if told else self.outputs(text))

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


class InText(Hermes):
    """The same in one text, as rollout dumps have it (verl, slime): the turns follow each other, with or without the
    markers of Qwen's template, of which a decoder that skips special ids leaves the roles."""

    certainty = Certainty.TAGGED_TEXT
    _answers = re.compile(
        r"\s*(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:user|tool)?\s*"
        r"(?P<answers>(?:<tool_response>.*?</tool_response>\s*)+)"
        r"(?:<\|im_end\|>)?\s*(?:<\|im_start\|>)?(?:assistant\s*)?",
        re.DOTALL,
    )

    def cut(self, text: str, answered: bool) -> list[Cut]:
        cuts: list[Cut] = []
        at = 0
        for start, answers in self._rounds(text):
            if start > at:
                cuts.append(Cut("said", text[at:start]))
            written = text[start : answers.start()]
            calls = tuple(Call(c.name, c.arguments, c.char) for c in hermes.find_calls(written))
            cuts.append(Cut("call", written, calls))
            cuts.append(Cut("output", answers[0], (), self.outputs(answers["answers"])))
            at = answers.end()
        return [*cuts, Cut("said", text[at:])] if text[at:] or not cuts else cuts

    def _rounds(self, text: str) -> Iterator[tuple[int, re.Match[str]]]:
        """Where calls that are answered begin, and their answers, with what stands around these."""
        last = text.rfind("</tool_response>")
        start = text.find(hermes.OPEN)
        at = start + len(hermes.OPEN)
        while start >= 0 and 0 <= (closing := text.find(hermes.CLOSE, at)) < last:
            at = closing + len(hermes.CLOSE)
            if (answers := self._answers.match(text, at)) is not None:
                yield start, answers
                start = text.find(hermes.OPEN, answers.end())
                at = start + len(hermes.OPEN)

    def clean_inside(self, text: str) -> int | None:
        return inside(self, text) if "<tool_response>" in text else 0


register_dialect(Hermes())
register(chat(Hermes(), marks=("tool_call", "tool_response")))
register(Text(InText(), "<tool_response>", Certainty.TAGGED_TEXT, ("tool_call", "tool_response"), ("verl", "slime")))
