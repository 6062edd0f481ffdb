"""Qwen2.5 and Qwen3, and whatever else speaks ChatML: as `hermes`, with the tools shown in the system's message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from retcon.chat import hermes
from retcon.chat.families.hermes import Hermes
from retcon.chat.family import with_system
from retcon.chat.thoughts import THOUGHTS, spoken
from retcon.chat.types import TURN_START, FoundCall, Told
from retcon.core.types import ToolSpec

BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>"
)
AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call>"
)
"""The words that the models were trained with, before and after the tools, as Qwen's own templates have them."""
OPENING = """{%- set told = messages %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages and messages[0].role == 'system' %}
{%- set told = messages[1:] %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- BEFORE }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- AFTER + '<|im_end|>\\n' }}
{%- endif %}
""".replace("BEFORE", json.dumps(BEFORE)).replace("AFTER", json.dumps(AFTER))


class Qwen(Hermes):
    name = "qwen"
    template = OPENING + hermes.TURNS
    piecewise = False
    tokens = (TURN_START, hermes.OPEN)

    def find_calls(self, text: str) -> Iterator[FoundCall]:
        """What the model only thought of is no call."""
        return iter(spoken(text, hermes.FORMAT.find_calls(text), THOUGHTS, opened=False))

    def with_tools(self, messages: Sequence[Told], tools: Sequence[ToolSpec]) -> Sequence[Told]:
        return with_system(messages, _shown(tools)) if tools else messages


def _shown(tools: Sequence[ToolSpec]) -> str:
    listed = "".join(f"\n{json.dumps(tool.as_function(), ensure_ascii=False)}" for tool in tools)
    return f"{BEFORE}{listed}{AFTER}"


FAMILY = Qwen()
