"""MINT and CodeAct: `<execute>` with a program."""

from __future__ import annotations

import re

from retcon.transcripts.reading.dialects import Fragment, Plain, all_clean, is_feedback
from retcon.transcripts.reading.in_messages import in_messages
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.registry import register, register_dialect
from retcon.transcripts.types import Certainty


class Execute(Plain):
    """`<execute>` with code, answered by "Observation:" in the user's role (MINT, CodeAct). What a harness says about
    a proposed solution, or an input that it does not understand, is the user's, not an output."""

    name = "mint"
    certainty = Certainty.TAGS
    _block = re.compile(r"<execute>(.*?)(?:</execute>|\Z)", re.DOTALL)
    _trailer = re.compile(r"\nYou have \d+ steps? left[^\n]*(?:\nYou should take the last step[^\n]*)?\s*\Z")

    def calls_in(self, text: str) -> bool:
        return "<execute>" in text

    def cut(self, text: str, answered: bool) -> list[Fragment]:
        start = text.find("<execute>")
        if start < 0 or not answered:
            return [Fragment("said", text)]
        code = "\n".join(block.strip("\n") for block in self._block.findall(text))
        return [Fragment("said", text[:start])] * bool(start) + [
            Fragment("call", text[start:], (Call("python", {"code": code}),))
        ]

    def outputs(self, text: str) -> tuple[ToolOutput, ...]:
        at = text.rfind("\nYou have ")
        if at >= 0 and self._trailer.match(text, at):
            text = text[:at]
        return (ToolOutput(text.removeprefix("Observation:").removeprefix("\n")),)

    def told_outputs(self, text: str) -> tuple[ToolOutput, ...] | None:
        return self.outputs(text) if text.startswith("Observation:") and not is_feedback(text) else None

    def clean_outputs(self, text: str, told: bool) -> int | None:
        return all_clean(self.told_outputs(text) if told else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        return 1 if self.calls_in(text) else 0

    def clean_inside(self, text: str) -> int | None:
        return 0


register_dialect(Execute())
MINT = register(in_messages(Execute(), marks=("execute", "history", "state")))
