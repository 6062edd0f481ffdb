"""MINT and CodeAct: `<execute>` with a program."""

from __future__ import annotations

import re

from retcon.transcripts.chat import chat
from retcon.transcripts.dialects import Cut, Plain, all_clean, is_feedback
from retcon.transcripts.pieces import Call, Output
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
        return self.outputs(text) if text.startswith("Observation:") and not is_feedback(text) else None

    def clean_outputs(self, text: str, told: bool) -> int | None:
        return all_clean(self.told_outputs(text) if told else self.outputs(text))

    def clean_calls(self, text: str) -> int | None:
        return 1 if self.calls_in(text) else 0

    def clean_inside(self, text: str) -> int | None:
        return 0


register_dialect(Execute())
MINT = register(chat(Execute(), marks=("execute", "history", "state")))
