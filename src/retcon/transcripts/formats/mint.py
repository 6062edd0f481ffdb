"""MINT and CodeAct: `<execute>` with a program."""

from __future__ import annotations

import re

from retcon.transcripts.reading.dialects import Dialect, Fragment, is_feedback
from retcon.transcripts.reading.in_messages import in_messages
from retcon.transcripts.reading.pieces import Call, ToolOutput
from retcon.transcripts.registry import register, register_dialect


class Execute(Dialect):
    """`<execute>` with code, answered by "Observation:" in the user's role (MINT, CodeAct). What a harness says about
    a proposed solution, or an input that it does not understand, is the user's, not an output."""

    name = "mint"
    _block = re.compile(r"<execute>(.*?)(?:</execute>|\Z)", re.DOTALL)
    _trailer = re.compile(r"\nYou have \d+ steps? left[^\n]*(?:\nYou should take the last step[^\n]*)?\s*")
    _expert = "\nExpert feedback:"

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
        if at >= 0 and self._trailer.fullmatch(text, at):
            text = text[:at]
        return (ToolOutput(text.removeprefix("Observation:").removeprefix("\n")),)

    def told_end(self, text: str) -> int | None:
        """Where an output in the user's role ends: what an expert says of it, and what follows the steps that are left,
        is a user's."""
        if not text.startswith("Observation:") or is_feedback(text):
            return None
        expert = text.find(self._expert)
        end = len(text) if expert < 0 else expert
        for counted in self._trailer.finditer(text, 0, end):
            end = counted.end()
        return end

    def clean_calls(self, text: str) -> int | None:
        return 1 if self.calls_in(text) else 0

    def clean_inside(self, text: str) -> int | None:
        return 0


register_dialect(Execute())
MINT = register(in_messages(Execute(), marks=("execute", "history", "state")))
