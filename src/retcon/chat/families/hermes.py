"""Calls are JSON between tags, observations stand in a user turn, as in Qwen's templates; no tools are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from retcon.chat import hermes
from retcon.chat.family import ChatML, Written, joined
from retcon.chat.types import TURN_END, TURN_START, FoundCall, Piece

_OBSERVED = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


class Hermes(ChatML):
    name = "hermes"
    template = "{%- set told = messages %}\n" + hermes.TURNS
    piecewise = True
    before = f"\n{TURN_START}user\n<tool_response>\n"
    between = "\n</tool_response>\n<tool_response>\n"
    after = f"\n</tool_response>{TURN_END}"

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        return hermes.find_calls(text)

    def written(self, text: str, calls: Sequence[Written]) -> list[Piece]:
        return joined(text, (_tagged(*call) for call in calls))

    def observations_in(self, text: str) -> list[str]:
        return _OBSERVED.findall(text)


def _tagged(name: str, arguments: object) -> str:
    if isinstance(arguments, str):
        return f"{hermes.OPEN}\n{arguments}\n{hermes.CLOSE}"
    assert isinstance(arguments, dict)
    return hermes.render_call(name, arguments)


FAMILY = Hermes()
