"""Qwen3-Coder: `<tool_call>` with tags for the function and each of its arguments; answers as in Hermes."""

from __future__ import annotations

from collections.abc import Iterator

from retcon.chat import hermes
from retcon.chat.families.qwen3_coder import FAMILY, FUNCTION
from retcon.chat.types import FoundCall
from retcon.transcripts.formats.hermes import MARKS, Hermes, HermesInText, tagged
from retcon.transcripts.reading.in_messages import in_messages
from retcon.transcripts.reading.in_text import InText
from retcon.transcripts.registry import register, register_dialect
from retcon.transcripts.types import Certainty


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


register_dialect(Qwen3Coder())
register(in_messages(Qwen3Coder(), marks=(*MARKS, "function")))
_in_text = Qwen3CoderInText()
register(InText(_in_text, (FUNCTION, *_in_text.signs), Certainty.TAGGED_TEXT, MARKS, ("verl",)))
