"""Qwen2.5 and Qwen3, and whatever else speaks ChatML: as `hermes`, with the tools shown in the system's message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from retcon.chat import hermes
from retcon.chat.families.hermes import Hermes
from retcon.chat.family import with_system
from retcon.chat.types import TURN_START, FoundCall, Told
from retcon.core.schema import ToolSpec

THOUGHT = "</think>"


class Qwen(Hermes):
    name = "qwen"
    piecewise = False
    marks: tuple[str, ...] = (TURN_START, hermes.OPEN)

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """What the model only thought of is no call."""
        return hermes.find_calls(text, max(0, text.find(THOUGHT)))

    def with_tools(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> Sequence[Told]:
        return with_system(messages, _shown(tools)) if tools else messages


def _shown(tools: Sequence[ToolSpec]) -> str:
    """The words that the models were trained with, as Qwen's own templates have them."""
    listed = "".join(f"\n{json.dumps(tool.as_function(), ensure_ascii=False)}" for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with "
        f"function signatures within <tools></tools> XML tags:\n<tools>{listed}\n</tools>\n\nFor each function call, "
        "return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


FAMILY = Qwen()
